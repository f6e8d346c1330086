"""Process groups, from `layout/ranks.py` and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

from partrain.layout.layout import Layout
from partrain.layout.ranks import Coordinate, coordinate_of, groups_along, rank_of


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that hold the shards of the same layers; `handle` None when there is but one."""

    rank: int
    size: int
    handle: Any = None


ALONE = TensorGroup(rank=0, size=1)


def tensor_group(layout: Layout, rank: int) -> TensorGroup:
    """The tensor group of `rank`. Collective: every rank of the world calls it, in the same order."""
    if layout.tp == 1:
        return ALONE
    mine = None
    for ranks in groups_along("tp", layout):
        handle = dist.new_group(list(ranks))
        if rank in ranks:
            mine = TensorGroup(ranks.index(rank), layout.tp, handle)
    assert mine is not None
    return mine


def said_by_all(words: Iterable[str]) -> list[str]:
    """What all ranks of the world say, rank after rank, on every one. Collective."""
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, list(words))
    return [word for own in found for word in own]


class Grid(PipelineParallelGrid):
    """DeepSpeed's groups for an engine without a pipeline, under the one name that the grid lacks."""

    def get_tensor_model_parallel_group(self) -> Any:
        """The tensor group of this rank."""
        return self.get_slice_parallel_group()


def topology(layout: Layout) -> PipeModelDataParallelTopology:
    """DeepSpeed's own topology for this layout; raises AssertionError where it and ours disagree."""
    theirs = PipeModelDataParallelTopology(num_pp=layout.pp, num_mp=layout.tp, num_dp=layout.dp)
    for rank in range(layout.world_size):
        at = theirs.get_coord(rank)
        ours = Coordinate(pp=at.pipe, dp=at.data, tp=at.model)
        assert coordinate_of(rank, layout) == ours, f"DeepSpeed puts rank {rank} at {at}"
        assert rank_of(ours, layout) == rank
    return theirs
