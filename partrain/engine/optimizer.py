"""Parameter groups, and the norm that DeepSpeed does not compute without ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.model.weights import Weight
from partrain.spec.training import OptimizerSection


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """What decays and what does not, in two groups.

    Raises AssertionError when one is empty: DeepSpeed's norm is one all-reduce a group, and a stage
    without one would wait for ever.
    """
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in parameters:
        entry: Weight = parameter.entry  # type: ignore[attr-defined]
        (decaying if entry.decay else others).append(parameter)
    assert decaying, "a stage without a matrix"
    assert others, "a stage without a norm or bias"
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


class ClippingAdamW(torch.optim.AdamW):
    """AdamW that clips by the norm of the whole model's gradient, for ZeRO 0 without a pipeline.

    DeepSpeed clips a bare fp32 optimizer's gradients too, but tells nobody the norm.
    """

    def __init__(self, groups: list[dict[str, Any]], wish: OptimizerSection, group: TensorGroup) -> None:
        super().__init__(groups, lr=wish.lr, betas=wish.betas, eps=wish.eps, fused=True)
        self.limit, self.group = wish.grad_clip, group
        self.grad_norm = 0.0
        self.overflow = False
        """Whether the last update was left out; DeepSpeed counts these."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update, left out where the norm is not finite; `grad_norm` is the norm before clipping."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = global_norm(parameters, self.group)
        self.grad_norm = float(norm)
        self.overflow = not isfinite(self.grad_norm)
        if self.overflow:
            return None
        if self.limit > 0:
            nn.utils.clip_grads_with_norm_(parameters, self.limit, norm)
        return super().step(closure)


def forget_gradients(optimizer: Any) -> None:
    """Drop the gradients of an update that was left out.

    ZeRO 2 of DeepSpeed 0.19.8 keeps them when they are offloaded in bf16 (`stage_1_and_2.py : step` drops
    them in its other branches): what was not finite once would be in every later sum.
    """
    groups: dict[int, Any] = getattr(optimizer, "averaged_gradients", {})
    groups.update(dict.fromkeys(groups))


def global_norm(parameters: Iterable[nn.Parameter], group: TensorGroup) -> Tensor:
    """Norm of the whole gradient over a tensor group: shards of every rank, copies of rank 0 only."""
    counted = (p for p in parameters if group.rank == 0 or hasattr(p, "tensor_model_parallel"))
    kept = [p.grad for p in counted if p.grad is not None]
    square = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(kept))).square()
    if group.size > 1:
        dist.all_reduce(square, group=group.handle)
    return square.sqrt()
