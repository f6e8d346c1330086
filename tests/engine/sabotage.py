"""Faults put into the engine on purpose, to show that the layout tests would see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partrain.data import tokens
from partrain.data.order import positions
from partrain.engine import dropout, evaluation, initial, modules, muon, tensor_parallel
from partrain.engine.loss import HeadOutput, Loss
from partrain.layout.layout import Layout
from partrain.model.weights import Weight


def _unmarked(target: nn.Parameter, weight: Weight) -> nn.Parameter:
    target.entry = weight  # type: ignore[attr-defined]
    return target


def _not_summed(region: tensor_parallel.Region, weight: Tensor) -> Tensor:
    return weight


def _no_ties(module: PipelineModule) -> list[Any]:
    return []


def _one_later(step: int, layout: Layout, *, replica: int, micro_batch: int, first: int = 0) -> range:
    first += ((step - 1) * layout.dp + replica) * layout.num_micro_batches + micro_batch
    return range(first * layout.micro_batch_size + 1, (first + 1) * layout.micro_batch_size + 1)


def _own_shard(x: Tensor, handle: Any) -> Tensor:
    """What others hold, taken for what this rank holds."""
    return x.reshape(-1).repeat(torch.distributed.get_world_size(handle))


def _mean_of_all(loss: Loss, output: HeadOutput, labels_BT: Tensor) -> Tensor:
    return loss.of_tokens(output, labels_BT.clamp(min=0)).double().mean()


def _first_tokens(region: tensor_parallel.Region, length: int) -> slice:
    return slice(0, length // region.group.size)


def _first_replicas(step: int, layout: Layout, *, replica: int, micro_batch: int, first: int) -> range:
    return positions(step, layout, replica=0, micro_batch=micro_batch, first=first)


def _newly_drawn(function: Callable[..., Tensor], x: Tensor, given: modules.Given) -> Tensor:
    if given.after_mlp is None:  # an evaluation drops nothing
        return function(x, given)
    shifted = dropout.Mask(given.after_mlp.row_BS2 + 1, given.after_mlp.column_H)
    states = iter((given, given._replace(after_mlp=shifted)))
    return checkpoint(lambda x: function(x, next(states)), x, use_reentrant=False)


FAULTS: dict[str, list[tuple[object, str, object]]] = {
    "": [],
    "unmarked shard": [(tensor_parallel, "mark", _unmarked), (initial, "mark", _unmarked)],
    "norm gradient not summed": [(tensor_parallel.Region, "outside", _not_summed)],
    "head norm gradient not summed": [(tensor_parallel.Region, "inside", _not_summed)],
    "tied gradient not summed": [(PipelineModule, "get_tied_weights_and_groups", _no_ties)],
    "momentum not gathered": [(muon, "_gathered", _own_shard)],
    "filling of evaluation counted": [(evaluation, "mean_of_labelled", _mean_of_all)],
    "data off by one sample": [(tokens, "positions", _one_later)],
    "one dropout stream for all tensor ranks": [(tensor_parallel.Region, "tokens", _first_tokens)],
    "one dropout stream for all replicas": [(dropout, "positions", _first_replicas)],
    "dropout drawn again on recompute": [(modules, "_recomputed", _newly_drawn)],
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The engine with one fault; an empty name is none."""
    with pytest.MonkeyPatch.context() as patch:
        for target, attribute, replacement in FAULTS[name]:
            patch.setattr(target, attribute, replacement)
        yield
