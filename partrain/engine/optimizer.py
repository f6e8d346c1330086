"""Plan -> the optimizer, its parameter groups, and the norm that DeepSpeed does not compute without ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.engine.lion import Lion
from partrain.engine.muon import Muon
from partrain.model.weights import Weight
from partrain.plan.plan import Plan
from partrain.spec.optimizers import OptimizerName, OptimizerSpec

Groups = list[dict[str, Any]]


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> Groups:
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


def build_optimizer(
    plan: Plan, groups: Groups, *, group: TensorGroup, replicas: Any
) -> torch.optim.Optimizer:
    """The plan's optimizer over `groups`; `replicas` is the process group of ZeRO's shares."""
    wish = plan.training.optimizer
    if wish.name == "muon":
        dtype = torch.float32 if plan.training.precision == "fp32" else torch.bfloat16
        shares = replicas if plan.layout.zero else None
        return Muon(groups, wish, group=group, replicas=shares, dtype=dtype)
    return _BUILDERS[wish.name](groups, wish)


def _adamw(groups: Groups, wish: OptimizerSpec) -> torch.optim.Optimizer:
    assert wish.eps is not None
    return torch.optim.AdamW(groups, lr=wish.lr, betas=wish.betas, eps=wish.eps, fused=True)


def _adamw_8bit(groups: Groups, wish: OptimizerSpec) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit  # of an extra, and for GPUs only

    found: torch.optim.Optimizer = AdamW8bit(groups, lr=wish.lr, betas=wish.betas, eps=wish.eps)
    return found


def _lion(groups: Groups, wish: OptimizerSpec) -> torch.optim.Optimizer:
    return Lion(groups, lr=wish.lr, betas=wish.betas)


_BUILDERS: Mapping[OptimizerName, Callable[[Groups, OptimizerSpec], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adamw8bit": _adamw_8bit,
    "lion": _lion,
}


class Clipping:
    """Clips by the norm of the whole model's gradient before each step, for ZeRO 0 without a pipeline; where
    the norm is not finite, takes the gradients away, so that the step changes nothing.

    DeepSpeed clips a bare fp32 optimizer's gradients too, but tells nobody the norm.
    """

    def __init__(self, limit: float, group: TensorGroup) -> None:
        self.limit, self.group = limit, group
        self.grad_norm = 0.0

    @torch.no_grad()
    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = global_norm(parameters, self.group)
        self.grad_norm = float(norm)
        # DeepSpeed counts the updates that were left out by this.
        optimizer.overflow = not isfinite(self.grad_norm)  # type: ignore[attr-defined]
        if not isfinite(self.grad_norm):
            for parameter in parameters:
                parameter.grad = None
            return
        if self.limit > 0:
            nn.utils.clip_grads_with_norm_(parameters, self.limit, norm)

    def before_steps_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Take hold of `optimizer`, which has it as `clipping` from then on."""
        optimizer.register_step_pre_hook(self)
        optimizer.clipping = self  # type: ignore[attr-defined]


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
