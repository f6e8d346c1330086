"""Muon: the blocks' matrices move by their orthogonalised momentum, all else by AdamW.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon), with the size of Liu et al. 2025 (arXiv 2502.16982).
An update needs the whole matrix, of which a tensor group's ranks hold shards, and ZeRO's replicas shares of a
flat row of shards: both are gathered, so that no cut changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.engine.tensor_parallel import all_gather
from partrain.model.decoder import EMBEDDING, HEAD, POSITIONS
from partrain.model.weights import Weight
from partrain.spec.optimizers import OptimizerSpec

COEFFICIENTS, NUM_ROUNDS = (3.4445, -4.7750, 2.0315), 5
"""Of the quintic iteration, by Jordan et al. 2024: singular values come to lie within about 0.3 of 1."""
SIZE = 0.2
"""Root mean square of AdamW's usual update, by Liu et al. 2025, section 2.2."""


class Piece(NamedTuple):
    """A weight as this rank holds it."""

    shape: tuple[int, ...]
    split: int | None
    """Dim that is cut over the tensor group; None: it is whole."""
    is_matrix: bool
    """Whether it moves by Muon: a matrix inside a block."""

    @property
    def numel(self) -> int:
        """Elements of the shard."""
        return torch.Size(self.shape).numel()


class Span(NamedTuple):
    """The part of a piece that lies in a share of the flat row."""

    piece: Piece
    begin: int
    """Where the piece begins in the whole row."""
    first: int
    end: int
    """The part, in the whole row."""


def piece_of(parameter: nn.Parameter) -> Piece:
    """What the optimizer must know of `parameter` once it is in a flat row."""
    entry: Weight = parameter.entry  # type: ignore[attr-defined]
    is_matrix = len(entry.shape) == 2 and entry.name not in (EMBEDDING, POSITIONS, HEAD)
    return Piece(tuple(parameter.shape), entry.split, is_matrix)


def spans(pieces: tuple[Piece, ...], first: int, size: int) -> Iterator[Span]:
    """What lies in the `size` elements from `first` of the row of `pieces`.

    >>> row = Piece((2, 3), None, True), Piece((4,), None, False)
    >>> [(span.begin, span.first, span.end) for span in spans(row, 5, 3)]
    [(0, 5, 6), (6, 6, 8)]
    """
    begin = 0
    for piece in pieces:
        start, end = max(begin, first), min(begin + piece.numel, first + size)
        if start < end:
            yield Span(piece, begin, start, end)
        begin += piece.numel


class Muon(torch.optim.Optimizer):
    """Muon and AdamW in one, over whole shards or over ZeRO's flat shares of them."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        wish: OptimizerSpec,
        *,
        group: TensorGroup,
        replicas: Any,
        dtype: torch.dtype,
    ) -> None:
        """`replicas`: group whose ranks hold the shares in turn; None: parameters are whole shards."""
        for entry in groups:
            entry["pieces"] = tuple(piece_of(parameter) for parameter in entry["params"])
        super().__init__(groups, {"lr": wish.lr})
        self.wish, self.group, self.replicas, self.dtype = wish, group, replicas, dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient. Collective over replicas and tensor group, whose
        ranks have gradients of the same parameters."""
        for group in self.param_groups:
            rows = [(piece,) for piece in group["pieces"]] if self.replicas is None else [group["pieces"]]
            for parameter, pieces in zip(group["params"], rows, strict=True):
                if parameter.grad is not None:
                    self._update(parameter, pieces, lr=group["lr"], weight_decay=group["weight_decay"])

    def _update(
        self, parameter: Tensor, pieces: tuple[Piece, ...], *, lr: float, weight_decay: float
    ) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            # Both as large as the parameter, so that any element's states can be found, and cut anew.
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        share, gradient, moment, square = (
            tensor.view(-1) for tensor in (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        )
        offset = 0 if self.replicas is None else dist.get_rank(self.replicas) * share.numel()
        whole = self._whole_row(gradient, moment, pieces)
        share.mul_(1.0 - lr * weight_decay)
        for span in spans(pieces, offset, share.numel()):
            part = slice(span.first - offset, span.end - offset)
            if span.piece.is_matrix:
                share[part].sub_(self._direction(whole, span), alpha=lr)
            else:
                self._adamw(share[part], gradient[part], moment[part], square[part], rate=(lr, state["step"]))

    def _whole_row(self, gradient: Tensor, moment: Tensor, pieces: tuple[Piece, ...]) -> Tensor:
        """Momentum of the whole row, a step ahead (Nesterov); its matrices' moments take the gradient in."""
        if not any(piece.is_matrix for piece in pieces):
            return moment
        decay = self.wish.momentum
        assert decay is not None
        offset = 0 if self.replicas is None else dist.get_rank(self.replicas) * moment.numel()
        for span in spans(pieces, offset, moment.numel()):
            if span.piece.is_matrix:
                part = slice(span.first - offset, span.end - offset)
                moment[part].lerp_(gradient[part], 1.0 - decay)
        ahead = torch.lerp(gradient, moment, decay)
        return ahead if self.replicas is None else _gathered(ahead, self.replicas)

    def _direction(self, row: Tensor, span: Span) -> Tensor:
        """This part of the matrix' orthogonalised momentum, of the size of AdamW's update."""
        piece = span.piece
        matrix = row[span.begin : span.begin + piece.numel].view(piece.shape)
        cut = piece.split if self.group.size > 1 else None
        if cut is not None:
            shards = _gathered(matrix.contiguous(), self.group.handle).view(self.group.size, *piece.shape)
            matrix = torch.cat(tuple(shards), dim=cut)
        result = orthogonalised(matrix, self.dtype) * (SIZE * max(matrix.shape) ** 0.5)
        if cut is not None:
            result = result.chunk(self.group.size, dim=cut)[self.group.rank]
        return result.reshape(-1)[span.first - span.begin : span.end - span.begin]

    def _adamw(
        self, weight: Tensor, gradient: Tensor, moment: Tensor, square: Tensor, *, rate: tuple[float, int]
    ) -> None:
        """AdamW's update without its decay (Loshchilov and Hutter 2019, algorithm 2)."""
        (lr, step), (beta, beta_square), eps = rate, self.wish.betas, self.wish.eps
        assert eps is not None
        moment.lerp_(gradient, 1.0 - beta)
        square.mul_(beta_square).addcmul_(gradient, gradient, value=1.0 - beta_square)
        root = (square / (1.0 - beta_square**step)).sqrt_().add_(eps)
        weight.addcdiv_(moment, root, value=-lr / (1.0 - beta**step))


def _gathered(x: Tensor, handle: Any) -> Tensor:
    """`x` of every rank of a process group, one after another, flat."""
    result = x.new_empty(dist.get_world_size(handle) * x.numel())
    all_gather(result, x.reshape(-1), group=handle)
    return result


def orthogonalised(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """U S V^T for `matrix` = U D V^T with S near one, computed in `dtype` and returned in the matrix' own."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix / (matrix.norm() + 1e-7)).to(dtype)
    x = x.T if is_tall else x
    for _ in range(NUM_ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if is_tall else x).to(matrix.dtype)
