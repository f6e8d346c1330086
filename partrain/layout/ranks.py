"""Rank <-> coordinate. The order of the axes is DeepSpeed's: pipe, data, tensor, the last the fastest.

Source: `PipeModelDataParallelTopology` in deepspeed/runtime/pipe/topology.py, 0.19.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.layout.layout import Layout

Axis = Literal["pp", "dp", "tp"]


@dataclass(frozen=True, order=True)
class Coordinate:
    """Position of a rank on the three axes."""

    pp: int
    dp: int
    tp: int

    def __str__(self) -> str:
        return f"dp {self.dp}, pp {self.pp}, tp {self.tp}"


def coordinate_of(rank: int, layout: Layout) -> Coordinate:
    """Position of `rank`.

    With pp 2, dp 2, tp 2 rank 5 is the second tensor shard of the first replica on the second stage:

    >>> from partrain.layout.layout import Layout
    >>> layout = Layout(dp=2, pp=2, tp=2, zero=1, sequence_parallel=False, micro_batch_size=1,
    ...                 num_micro_batches=1, recompute="none", stage_bounds=(0, 2, 4))
    >>> coordinate_of(5, layout)
    Coordinate(pp=1, dp=0, tp=1)
    """
    if not 0 <= rank < layout.world_size:
        raise ValueError(f"rank {rank} is outside a world of {layout.world_size}")
    stage, rest = divmod(rank, layout.dp * layout.tp)
    replica, shard = divmod(rest, layout.tp)
    return Coordinate(stage, replica, shard)


def rank_of(at: Coordinate, layout: Layout) -> int:
    """Rank at a position; the inverse of `coordinate_of`."""
    return (at.pp * layout.dp + at.dp) * layout.tp + at.tp


def groups_along(axis: Axis, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Ranks that differ only on `axis`: one group for each position on the other two, in rank order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.world_size):
        at = coordinate_of(rank, layout)
        others = tuple(getattr(at, name) for name in ("pp", "dp", "tp") if name != axis)
        groups.setdefault(others, []).append(rank)
    return tuple(tuple(group) for group in groups.values())
