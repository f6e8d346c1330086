"""The optimizers once more, as their papers have them: a weight at a time, whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from partrain.spec.optimizers import OptimizerSpec


class Lion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, wish: OptimizerSpec) -> None:
        self.wish, self.momentum = wish, {}

    def step(self, weights: Mapping[str, torch.Tensor], lr: float) -> None:
        for name, weight in weights.items():
            (beta1, beta2), gradient = self.wish.betas, weight.grad
            decay = self.wish.weight_decay if weight.ndim > 1 else 0.0
            momentum = self.momentum.get(name, torch.zeros_like(weight))
            direction = torch.sign(beta1 * momentum + (1 - beta1) * gradient)
            weight.data = weight.data - lr * (direction + decay * weight.data)
            self.momentum[name] = beta2 * momentum + (1 - beta2) * gradient


class AdamW:
    """torch's own, a parameter group for what decays and one for what does not."""

    def __init__(self, wish: OptimizerSpec) -> None:
        self.wish, self.optimizer = wish, None

    def step(self, weights: Mapping[str, torch.Tensor], lr: float) -> None:
        wish = self.wish
        if self.optimizer is None:
            decays = [value for value in weights.values() if value.ndim > 1]
            others = [value for value in weights.values() if value.ndim == 1]
            groups = [{"params": decays, "weight_decay": wish.weight_decay}]
            groups += [{"params": others, "weight_decay": 0.0}] if others else []
            self.optimizer = torch.optim.AdamW(groups, lr=wish.lr, betas=wish.betas, eps=wish.eps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()


class Muon:
    """Jordan et al. 2024 for the blocks' matrices, in the size of Liu et al. 2025; AdamW for the others."""

    def __init__(self, wish: OptimizerSpec) -> None:
        self.wish, self.momentum, self.others = wish, {}, AdamW(wish)

    def step(self, weights: Mapping[str, torch.Tensor], lr: float) -> None:
        wish = self.wish
        matrices = {n: w for n, w in weights.items() if n.startswith("layers.") and w.ndim == 2}
        self.others.step({n: w for n, w in weights.items() if n not in matrices}, lr)
        for name, weight in matrices.items():
            # A sum that decays, as in the paper, where the product has a mean: only its direction is used.
            momentum = wish.momentum * self.momentum.get(name, torch.zeros_like(weight)) + weight.grad
            self.momentum[name] = momentum
            direction = by_singular_values(weight.grad + wish.momentum * momentum)
            size = 0.2 * max(weight.shape) ** 0.5
            weight.data = weight.data - lr * (size * direction + wish.weight_decay * weight.data)


def by_singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """The quintic on the singular values themselves, instead of by products of matrices."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values @ right).float()


PLAIN = {"adamw": AdamW, "lion": Lion, "muon": Muon}
