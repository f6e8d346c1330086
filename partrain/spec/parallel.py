"""The degrees of parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.section import Auto, Count

Zero = Literal[0, 1]


@dataclass(frozen=True, kw_only=True)
class ParallelSection:
    """The `parallel` section: how the model and the batch are spread over the devices."""

    dp: Count | Auto = "auto"
    """Data-parallel replicas."""
    pp: Count | Auto = "auto"
    """Pipeline stages."""
    tp: Count | Auto = "auto"
    """Tensor-parallel shards of each layer."""
    sequence_parallel: bool | Auto = "auto"
    """Whether norms and the residual stream are split along the sequence inside a tensor group."""
    zero: Zero | Auto = "auto"
    """ZeRO stage: 0 replicates optimizer states (fp32 without a pipeline only), 1 shards them."""
