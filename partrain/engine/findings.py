"""Where a number that is not finite came first: in which layer, on which rank.

What is found on a rank is told apart from the judgement over all ranks, which is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from partrain.layout.ranks import coordinate_of
from partrain.model.weights import Weight
from partrain.plan.plan import Plan

Kind = Literal["weight", "activation", "gradient"]
_ORDER: Mapping[Kind, int] = {"weight": 0, "activation": 1, "gradient": 2}
"""What spoils what: a weight the activations, an activation the gradients."""


@dataclass(frozen=True)
class Finding:
    """The first tensor of its kind on a rank that is not finite."""

    kind: Kind
    layer: int
    """Pipeline layer: 0 the embedding, the last one the head."""
    order: int
    """Tensors that this rank had looked at before; ranks of a stage look at the same ones."""
    rank: int
    name: str
    num_nan: int
    num_inf: int
    numel: int


def first_of(findings: Iterable[Finding]) -> Finding | None:
    """The finding that the others come of: along the layers, and for gradients back."""
    return min(findings, key=_precedence, default=None)


def _precedence(found: Finding) -> tuple[int, int, int, int]:
    layer = -found.layer if found.kind == "gradient" else found.layer
    return _ORDER[found.kind], layer, found.order, found.rank


def in_words(found: Finding, plan: Plan) -> str:
    """Rank, layer, tensor and count.

    `first on rank 3 (dp 1, pp 0, tp 1), layer 2 (block 1), layers.1.mlp.up.weight: 12 of 4096 values are nan`
    """
    last = plan.model.num_layers + 1
    special = {0: "embedding", last: "head"}
    part = special.get(found.layer, f"block {found.layer - 1}")
    kind = " or ".join(word for word, number in (("nan", found.num_nan), ("inf", found.num_inf)) if number)
    values = f"{found.num_nan + found.num_inf} of {found.numel} values are {kind}"
    place = f"rank {found.rank} ({coordinate_of(found.rank, plan.layout)})"
    return f"first on {place}, layer {found.layer} ({part}), {found.name}: {values}"


class Search:
    """Looks at tensors in the order in which they are made, and keeps the first of each kind."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._stage, self._rank = plan.stages[coordinate_of(rank, plan.layout).pp], rank
        self._num_looks = 0
        self.found: dict[Kind, Finding] = {}

    def look(self, kind: Kind, name: str, weight: Weight, tensor: Tensor) -> None:
        """`tensor` is, or belongs to the module of, `weight`."""
        self._num_looks += 1
        if kind in self.found or not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            return
        # A stage that has the embedding's weight without its layer uses it as the head.
        layer = weight.layer if weight.layer >= self._stage.first else self._stage.last
        counts = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        self.found[kind] = Finding(
            kind, layer, self._num_looks, self._rank, name, *counts, numel=tensor.numel()
        )


def search_weights(search: Search, module: nn.Module) -> None:
    """Look at every weight, under ZeRO 3 at this rank's share of it."""
    for parameter in module.parameters():
        weight: Weight = parameter.entry  # type: ignore[attr-defined]
        held = parameter if parameter.numel() else parameter.ds_tensor  # type: ignore[attr-defined]
        search.look("weight", weight.name, weight, held.detach())


@contextmanager
def searched(search: Search, module: nn.Module) -> Iterator[None]:
    """While this lasts, look at what goes into and comes out of every module with a weight, and at the
    gradients of it on the way back."""
    handles: list[Any] = []
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            weight: Weight = parameter.entry  # type: ignore[attr-defined]
            handles.append(parameter.register_hook(_on_gradient(search, weight.name, weight)))
        if "weight" in owner._parameters:
            handles += _hooks(search, owner)
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled blocks do not call hooks that came later
            yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(search: Search, owner: nn.Module) -> Iterator[Any]:
    weight: Weight = owner.weight.entry  # type: ignore[union-attr, assignment]
    name = weight.name.removesuffix(".weight")

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        for tensor in _tensors(inputs):
            search.look("activation", f"the input of {name}", weight, tensor.detach())

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        for tensor in _tensors(output):
            search.look("activation", f"the output of {name}", weight, tensor.detach())
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(_on_gradient(search, f"the output of {name}", weight))

    yield owner.register_forward_pre_hook(before)
    yield owner.register_forward_hook(after)


def _on_gradient(search: Search, name: str, weight: Weight) -> Any:
    return lambda gradient: search.look("gradient", f"the gradient of {name}", weight, gradient.detach())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
