"""The attention core: scaled dot-product attention of torch, with the kernel, mask and dropout of the plan.

Shapes: B sequences, T tokens, N heads and K key-value heads of this rank, D head size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from partrain.engine.dropout import seed_kernels
from partrain.spec.training import AttentionKernel

KERNELS: dict[AttentionKernel, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class AttentionCore:
    """Softmax attention with a causal mask: [B, N, T, D], [B, K, T, D] twice -> [B, N, T, D]."""

    kernel: AttentionKernel = "torch"
    dropout: float = 0.0
    """Part of the probabilities that is dropped where a seed is given."""

    def __call__(
        self, q_BNTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, window_TT: Tensor | None, seed: int | None
    ) -> Tensor:
        """`window_TT` stands in the place of the causal mask; `seed` None drops nothing."""
        if seed is not None:
            seed_kernels(seed, q_BNTD.device)
        grouped = q_BNTD.shape[1] != k_BKTD.shape[1]
        if grouped and (window_TT is not None or self.kernel == "efficient" or _is_fp32_on_gpu(q_BNTD)):
            # On GPUs the one kernel that takes a mask or fp32 knows no shared heads: torch would fall back to
            # `math`, which keeps all T x T probabilities.
            k_BKTD, v_BKTD = (x.repeat_interleave(q_BNTD.shape[1] // x.shape[1], 1) for x in (k_BKTD, v_BKTD))
            grouped = False
        with self._chosen():
            return F.scaled_dot_product_attention(
                q_BNTD,
                k_BKTD,
                v_BKTD,
                attn_mask=window_TT,
                dropout_p=0.0 if seed is None else self.dropout,
                is_causal=window_TT is None,
                enable_gqa=grouped,
            )

    def _chosen(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.kernel == "torch" else sdpa_kernel(KERNELS[self.kernel])


def _is_fp32_on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32


@lru_cache(maxsize=4)
def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[T, T]: whether the token of a row attends to that of a column, one of the `window` newest."""
    past_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return past_TT.triu(1 - window)
