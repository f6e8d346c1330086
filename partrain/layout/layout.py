"""A layout: how one job is spread over the ranks, every number decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.parallel import Offload
from partrain.spec.section import Count
from partrain.spec.training import Recompute

ZeroStage = Literal[0, 1, 2, 3]


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and the shape of the batch on them."""

    dp: Count
    """Data-parallel replicas."""
    pp: Count
    """Pipeline stages."""
    tp: Count
    """Tensor-parallel shards."""
    zero: ZeroStage
    """ZeRO stage."""
    sequence_parallel: bool
    """Residual stream split along the sequence inside a tensor group."""
    micro_batch_size: Count
    """Sequences a replica works on at once."""
    num_micro_batches: Count
    """Micro-batches a replica works through in one step."""
    recompute: Recompute
    """`none`, `selective` or `full`."""
    stage_bounds: tuple[int, ...]
    """Stage s holds the layers stage_bounds[s] to stage_bounds[s + 1] - 1; layer 0 is the embedding, the
    last one the head."""
    offload: Offload = "none"
    """What is kept in host memory."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp * self.pp * self.tp

    @property
    def global_batch_size(self) -> int:
        """Sequences a step."""
        return self.dp * self.micro_batch_size * self.num_micro_batches
