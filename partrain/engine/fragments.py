"""What this rank holds of the weights and of the optimizer's states, whatever engine keeps them.

ZeRO keeps the masters of a rank's share in flat tensors, one a parameter group, cut at any element. Where a
weight lies in them is read from DeepSpeed's own maps, without communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partrain.checkpoint.boxes import Box, numel, whole
from partrain.model.weights import Weight, shard_range

_FLATS = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat")
"""DeepSpeed's names of a rank's masters: ZeRO 1 and 2, ZeRO 1 in bf16, ZeRO 3."""


@dataclass(frozen=True)
class Fragment:
    """Elements `start` to `stop` - 1, row by row, of a box of a weight; padding is in none."""

    weight: Weight
    box: Box
    start: int
    stop: int
    holder: Tensor
    """What the optimizer keeps its states for: the parameter, or a flat tensor of many."""
    offset: int
    """First element in the holder."""

    def of(self, tensor: Tensor) -> Tensor:
        """This fragment's elements [N] of a tensor shaped like the holder."""
        return tensor.detach().view(-1).narrow(0, self.offset, self.stop - self.start)

    @property
    def master(self) -> Tensor:
        """The weight's own elements [N], as the optimizer updates them."""
        return self.of(self.holder)


def inner_optimizer(engine: Any) -> torch.optim.Optimizer:
    """The optimizer that keeps the states."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def fragments(engine: Any, *, tensor_rank: int, tensor_size: int) -> tuple[Fragment, ...]:
    """Everything that this rank's optimizer updates, in the model's order.

    A tied weight appears on each stage that has it.
    """
    found = []
    for parameter, holder, first, start, count in _held(engine):
        weight: Weight = parameter.entry  # type: ignore[attr-defined]
        box = held_box(weight, tensor_rank=tensor_rank, tensor_size=tensor_size)
        # Padded rows are the last ones, so what is real comes first.
        stop = min(first + count, numel(box))
        if first < stop:
            found.append(Fragment(weight, box, first, stop, holder, start))
    return tuple(found)


def held_box(weight: Weight, *, tensor_rank: int, tensor_size: int) -> Box:
    """What a rank of a tensor group holds of a weight; padding is not in it."""
    box = list(whole(weight.shape))
    if weight.split is not None:
        box[weight.split] = shard_range(weight, tensor_size, tensor_rank)
    return tuple(box)


def masters(engine: Any) -> list[Tensor] | None:
    """The flat tensors that ZeRO keeps; None: the optimizer updates the parameters themselves."""
    return next((getattr(engine.optimizer, name) for name in _FLATS if hasattr(engine.optimizer, name)), None)


def _held(engine: Any) -> Iterator[tuple[nn.Parameter, Tensor, int, int, int]]:
    """(parameter, holder, first element in the parameter, first in the holder, how many)."""
    flats, optimizer = masters(engine), engine.optimizer
    for parameter in engine.module.parameters():
        if flats is None:
            yield parameter, parameter, 0, 0, parameter.numel()
        elif hasattr(parameter, "ds_id"):
            group, start, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
            first = count * dist.get_rank(parameter.ds_process_group)
            yield parameter, flats[group], first, start, count
        elif (at := parameter._hp_mapping) is not None:
            first, start = at.lp_fragment_address.start, at.hp_fragment_address.start
            yield parameter, flats[at.param_group_index], first, start, at.lp_fragment_address.numel


def renew_parameters(engine: Any) -> None:
    """Make the parameters that the model computes with from the masters. Collective over replicas."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "update_lp_params"):
        optimizer.update_lp_params()
    elif hasattr(optimizer, "fp32_partitioned_groups_flat"):
        for group in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)
