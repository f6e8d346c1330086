"""The degrees of parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.section import Auto, Count

Zero = Literal[0, 1, 2, 3]
Offload = Literal["none", "optimizer", "parameters"]


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
    """ZeRO stage: 0 replicates optimizer states (fp32 without a pipeline only), 1 shards them, 2 gradients
    too, 3 parameters too (2 and 3 without a pipeline only)."""
    offload: Offload = "none"
    """What is kept in host memory: `optimizer` states (ZeRO 2 or 3), or `parameters` too (ZeRO 3)."""
