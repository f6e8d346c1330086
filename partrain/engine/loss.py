"""The head's matrix product and the loss as one operator, over slices of the tokens.

It computes the gradients of its inputs on the way forward, slice by slice, so that only the logits of one
slice ever exist, and nothing is computed twice. Shapes: N tokens of a micro-batch, C of a slice, H hidden
size, V rows of the vocabulary on this rank, its padding among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partrain.engine.groups import TensorGroup
from partrain.engine.tensor_parallel import group_max, group_sum
from partrain.model.weights import Weight, shard_range

HeadOutput = tuple[Tensor, Tensor]
"""What the last layer hands over: the hidden states [B, T, H] and the matrix [V, H] that makes logits of
them."""


@dataclass(frozen=True)
class Loss:
    """Mean cross-entropy in nats, the same on every rank of the group; `head` is the matrix's weight."""

    head: Weight
    group: TensorGroup
    chunk_size: int | None = None
    """Tokens of a slice; None: all at once."""
    label_smoothing: float = 0.0
    """Part of the target that is spread over the whole vocabulary (Szegedy et al. 2016, section 7)."""
    z_loss: float = 0.0
    """Factor of the mean of log(Z)^2, Z the softmax's denominator (Chowdhery et al. 2022, section 5)."""

    def __call__(self, output: HeadOutput, labels_BT: Tensor) -> Tensor:
        """The loss of a micro-batch."""
        x_BTH, weight_VH = output
        with_gradients = torch.is_grad_enabled()
        return _HeadLoss.apply(x_BTH.flatten(0, 1), weight_VH, labels_BT.flatten(), self, with_gradients)

    def of_tokens(self, output: HeadOutput, labels_BT: Tensor) -> Tensor:
        """The loss of each token of a micro-batch [N], without gradients."""
        x_NH, weight_VH = output[0].flatten(0, 1), output[1]
        labels_N = labels_BT.flatten()
        size = self.chunk_size or labels_N.numel()
        slices = zip(x_NH.split(size), labels_N.split(size), strict=True)
        logits = ((F.linear(x_CH, weight_VH).float(), labels_C) for x_CH, labels_C in slices)
        return torch.cat([self.of_slice(logits_CV, labels_C, factor=0.0) for logits_CV, labels_C in logits])

    def of_slice(self, logits_CV: Tensor, labels_C: Tensor, *, factor: float) -> Tensor:
        """Losses [C]; `logits`, in fp32, become the gradient of `factor` times their sum.

        The ranks' logits are never gathered (Shoeybi et al. 2019, section 3).
        """
        first, end = shard_range(self.head, self.group.size, self.group.rank)
        real_CV = logits_CV[:, : end - first]
        logits_CV[:, end - first :] = float("-inf")
        peak_C = group_max(logits_CV.amax(dim=1), self.group)
        logits_CV.sub_(peak_C.unsqueeze(1))
        elsewhere_C = (labels_C < first) | (labels_C >= end)
        local_C = (labels_C - first).masked_fill(elsewhere_C, 0)
        target_C = logits_CV.gather(1, local_C.unsqueeze(1)).squeeze(1).masked_fill(elsewhere_C, 0.0)
        smooth, classes = self.label_smoothing, self.head.shape[0]
        mean_C = real_CV.sum(dim=1) / classes if smooth else torch.zeros_like(target_C)
        shares_CV = logits_CV.exp_()
        sum_C, target_C, mean_C = group_sum(torch.stack((shares_CV.sum(dim=1), target_C, mean_C)), self.group)
        log_sum_C = sum_C.log()
        log_z_C = peak_C + log_sum_C
        shares_CV.mul_((factor * (1.0 + 2.0 * self.z_loss * log_z_C) / sum_C).unsqueeze(1))
        hit_C = factor * (smooth - 1.0) * (~elsewhere_C).float()
        shares_CV.scatter_add_(1, local_C.unsqueeze(1), hit_C.unsqueeze(1))
        if smooth:
            real_CV.sub_(factor * smooth / classes)
        return log_sum_C - (1.0 - smooth) * target_C - smooth * mean_C + self.z_loss * log_z_C.square()


class _HeadLoss(torch.autograd.Function):
    """Hidden states and matrix -> mean loss. Backward only scales the gradients that forward has made."""

    @staticmethod
    def forward(
        ctx: Any, x_NH: Tensor, weight_VH: Tensor, labels_N: Tensor, loss: Loss, with_gradients: bool
    ) -> Tensor:
        num_tokens = labels_N.numel()
        # Gradients wait for backward as those of `unit` times the mean: numbers of 16 bits that are neither
        # too small nor rounded again there, a power of two being exact.
        unit = 2.0 ** (num_tokens.bit_length() - 1)
        slices = labels_N.split(loss.chunk_size or num_tokens)
        losses = []
        if with_gradients:
            grad_x_NH, grad_weight_VH = torch.empty_like(x_NH), None
            # A sum over many slices would lose what is small beside it in 16 bits.
            dtype = torch.float32 if len(slices) > 1 else weight_VH.dtype
        start = 0
        for labels_C in slices:
            rows = slice(start, start := start + labels_C.numel())
            logits_CV = F.linear(x_NH[rows], weight_VH).float()
            losses.append(loss.of_slice(logits_CV, labels_C, factor=unit / num_tokens))
            if with_gradients:
                grad_CV = logits_CV.to(x_NH.dtype)
                torch.mm(grad_CV, weight_VH, out=grad_x_NH[rows])
                grad_weight_VH = _plus_product(grad_weight_VH, grad_CV.t(), x_NH[rows], dtype)
        if with_gradients:
            ctx.save_for_backward(grad_x_NH, grad_weight_VH)
            ctx.unit, ctx.dtype = unit, weight_VH.dtype
        return torch.cat(losses).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_x_NH, grad_weight_VH = ctx.saved_tensors
        scale = grad / ctx.unit
        return grad_x_NH.mul_(scale), grad_weight_VH.mul_(scale).to(ctx.dtype), None, None, None


def _plus_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`total`, in place, plus `a` @ `b`, which may be in fewer bits; None is zero in `dtype`."""
    if total is None:
        return (a @ b).to(dtype)
    return total.addmm_(a, b) if total.dtype == a.dtype else total.add_(a @ b)
