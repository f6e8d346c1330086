"""A layout: how one job is spread over the ranks, every number decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and the shape of the batch on them."""

    dp: int
    """Data-parallel replicas."""
    pp: int
    """Pipeline stages."""
    tp: int
    """Tensor-parallel shards."""
    zero: int
    """ZeRO stage."""
    sequence_parallel: bool
    """Residual stream split along the sequence inside a tensor group."""
    micro_batch_size: int
    """Sequences a replica works on at once."""
    num_micro_batches: int
    """Micro-batches a replica works through in one step."""
    recompute: str
    """`none`, `selective` or `full`."""
    stage_bounds: tuple[int, ...]
    """Stage s holds the layers stage_bounds[s] to stage_bounds[s + 1] - 1; layer 0 is the embedding, the
    last one the head."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp * self.pp * self.tp

    @property
    def global_batch_size(self) -> int:
        """Sequences a step."""
        return self.dp * self.micro_batch_size * self.num_micro_batches
