"""The only place where a weight is split and where a tensor group communicates over activations.

Shapes: B sequences, T tokens of a sequence, S tokens that this rank holds of it (T, or T / tp with
sequence parallelism), H hidden size, O and I outputs and inputs of a linear layer, both local.

A `Region` is the part of the network between two linear layers in which each rank has all tokens but
only its share of the heads or of the MLP. Entering and leaving it is where the group communicates
(Shoeybi et al. 2019; with the sequence split outside of it, Korthikanti et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.model.weights import Weight, local_shape, shard_range

SEQUENCE_DIM = 1

# torch 2.13 renamed these and warns of the names that older releases have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def parameter(weight: Weight, group: TensorGroup) -> nn.Parameter:
    """This rank's share of `weight` on the meta device, marked so that norms count it right.

    DeepSpeed counts an unmarked parameter on tensor rank 0 only, so each shard must carry
    `tensor_model_parallel` and nothing that is replicated may.
    """
    result = nn.Parameter(torch.empty(local_shape(weight, group.size), device="meta"))
    return mark(result, weight)


def mark(target: nn.Parameter, weight: Weight) -> nn.Parameter:
    """`target`, carrying its row of the weight table."""
    target.entry = weight  # type: ignore[attr-defined]
    if weight.split is not None:
        target.tensor_model_parallel = True  # type: ignore[attr-defined]
    return target


def _gather(x: Tensor, group: TensorGroup) -> Tensor:
    """[B, S, ...] of each rank -> [B, T, ...]."""
    parts = x.new_empty((group.size, *x.shape))
    all_gather(parts.flatten(0, 1), x.contiguous(), group=group.handle)
    return parts.movedim(0, SEQUENCE_DIM).reshape(x.shape[0], -1, *x.shape[2:])


def _scatter_sum(x: Tensor, group: TensorGroup) -> Tensor:
    """[B, T, ...] of each rank -> this rank's [B, S, ...] of their sum."""
    parts = x.reshape(x.shape[0], group.size, -1, *x.shape[2:]).movedim(SEQUENCE_DIM, 0).contiguous()
    result = torch.empty_like(parts[0])
    _reduce_scatter(result, parts.flatten(0, 1), group=group.handle)
    return result


def _sum(x: Tensor, group: TensorGroup) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group.handle)
    return result


def group_max(x: Tensor, group: TensorGroup) -> Tensor:
    """`x`, in place, the largest of each element over the group; no gradient."""
    if group.size > 1:
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group.handle)
    return x


def group_sum(x: Tensor, group: TensorGroup) -> Tensor:
    """`x`, in place, summed over the group; no gradient."""
    if group.size > 1:
        dist.all_reduce(x, group=group.handle)
    return x


class _Copy(torch.autograd.Function):
    """Identity; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.group), None


class _Sum(torch.autograd.Function):
    """Sum over the group; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    """The whole sequence from its parts; the gradient is summed and cut again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scatter_sum(grad, ctx.group), None


class _ScatterSum(torch.autograd.Function):
    """Sum over the group, cut along the sequence; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return _scatter_sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.group), None


@dataclass(frozen=True)
class Region:
    """How activations enter and leave the part of the network that is split over the tensor group."""

    group: TensorGroup
    sequence_parallel: bool = False

    def enter(self, x_BSH: Tensor) -> Tensor:
        """The same on every rank: [B, T, H]."""
        if self.group.size == 1:
            return x_BSH
        return (_Gather if self.sequence_parallel else _Copy).apply(x_BSH, self.group)

    def leave(self, x_BTH: Tensor) -> Tensor:
        """The sum over the ranks: [B, S, H]."""
        if self.group.size == 1:
            return x_BTH
        return (_ScatterSum if self.sequence_parallel else _Sum).apply(x_BTH, self.group)

    def outside(self, weight: Tensor) -> Tensor:
        """A weight that every rank holds and uses outside the region.

        With sequence parallelism each rank's gradient is a part of the whole, from its own tokens, and
        DeepSpeed never sums it: it is summed here, on the way back.
        """
        return _Copy.apply(weight, self.group) if self.sequence_parallel else weight

    def inside(self, weight: Tensor) -> Tensor:
        """A weight that every rank holds and uses on its own heads, inside the region.

        Each rank's gradient is a part of the whole, from its own heads, with or without sequence
        parallelism: it is summed here, on the way back.
        """
        return _Copy.apply(weight, self.group) if self.group.size > 1 else weight

    def tokens(self, length: int) -> slice:
        """Which of `length` tokens this rank holds outside the region."""
        if not self.sequence_parallel:
            return slice(0, length)
        share = length // self.group.size
        return slice(self.group.rank * share, (self.group.rank + 1) * share)


class ColumnLinear(nn.Module):
    """[B, T, H] on every rank -> [B, T, O]: each rank has some of the outputs."""

    def __init__(self, weight: Weight, bias: Weight | None, group: TensorGroup) -> None:
        super().__init__()
        self.weight = parameter(weight, group)
        self.bias = parameter(bias, group) if bias else None

    def forward(self, x_BTH: Tensor) -> Tensor:
        return F.linear(x_BTH, self.weight, self.bias)


class RowLinear(nn.Module):
    """[B, T, I] of each rank's inputs -> [B, S, H]; leaves the region."""

    def __init__(self, weight: Weight, bias: Weight | None, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = parameter(weight, region.group)
        self.bias = parameter(bias, region.group) if bias else None

    def forward(self, x_BTI: Tensor) -> Tensor:
        if self.region.group.size == 1:
            return F.linear(x_BTI, self.weight, self.bias)
        y_BSH = self.region.leave(F.linear(x_BTI, self.weight))
        return y_BSH if self.bias is None else y_BSH + self.region.outside(self.bias)


class VocabularyEmbedding(nn.Module):
    """[B, T] tokens -> [B, S, H]: each rank looks up the tokens whose rows it holds."""

    def __init__(self, weight: Weight, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = parameter(weight, region.group)
        self.rows = shard_range(weight, region.group.size, region.group.rank)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if self.region.group.size == 1:
            return F.embedding(tokens_BT, self.weight)
        first, end = self.rows
        elsewhere_BT = (tokens_BT < first) | (tokens_BT >= end)
        x_BTH = F.embedding((tokens_BT - first).masked_fill(elsewhere_BT, 0), self.weight)
        return self.region.leave(x_BTH.masked_fill(elsewhere_BT.unsqueeze(-1), 0.0))
