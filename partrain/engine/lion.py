"""Lion: the sign of a momentum as the update (Chen et al. 2023, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Lion with decoupled weight decay, element by element, so that any cut of the weights gives the same.

    DeepSpeed's own is compiled on the user's machine at start.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            moments = [self._moment(parameter) for parameter in parameters]
            beta_update, beta_moment = group["betas"]
            updates = torch._foreach_lerp(moments, gradients, 1.0 - beta_update)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            torch._foreach_lerp_(moments, gradients, 1.0 - beta_moment)

    def _moment(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        return state["exp_avg"]
