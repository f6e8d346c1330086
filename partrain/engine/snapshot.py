"""This rank's part of a checkpoint: what is in it, and its copy in host memory, for which training waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from partrain.checkpoint.manifest import MASTER, Number, Slice, StoredWeight
from partrain.checkpoint.safetensors import header
from partrain.checkpoint.size import stores_states
from partrain.engine.fragments import Fragment, fragments, inner_optimizer, masters
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
}
"""Kind of a tensor's elements -> its name in safetensors files."""
DTYPES = {name: dtype for dtype, name in KINDS.items()}


@dataclass(frozen=True)
class Arrangement:
    """A file to be, and what is where in it."""

    header: bytes
    tensors: tuple[Tensor, ...]
    """What comes after the header, one after another, as it is in the engine."""
    num_bytes: int
    """Of all of them."""
    weights: Mapping[str, StoredWeight]
    random: Mapping[str, tuple[int, int]]
    """Generator -> first byte and number of bytes."""


def file_name(rank: int) -> str:
    """Name of what `rank` writes."""
    return f"rank-{rank:05d}.safetensors"


def written(engine: Any, plan: Plan, rank: int) -> Iterator[Fragment]:
    """What this rank writes of what it holds: together all ranks write each element once.

    Replicas without ZeRO hold the same and write a part each; a copy on every tensor rank is written by the
    first of them, a tied weight by the stage of its first use.
    """
    at, layout = coordinate_of(rank, plan.layout), plan.layout
    stage = plan.stages[at.pp]
    for held in fragments(engine, tensor_rank=at.tp, tensor_size=layout.tp):
        if not stage.first <= held.weight.layer <= stage.last or (held.weight.split is None and at.tp):
            continue
        if masters(engine) is not None:
            yield held
            continue
        size = held.stop - held.start
        start, stop = (held.start + size * share // layout.dp for share in (at.dp, at.dp + 1))
        if start < stop:
            yield replace(held, start=start, stop=stop, offset=held.offset + start - held.start)


def states_of(
    held: Fragment, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Number]]:
    """The optimizer's states of a fragment: tensors [N], and numbers that are one for the weight.

    Raises ValueError for a state of another shape: it cannot be cut along the weight.
    """
    tensors, scalars = {}, {}
    for name, value in sorted(optimizer.state.get(held.holder, {}).items()):
        if isinstance(value, Tensor) and value.shape == held.holder.shape and value.numel() > 1:
            tensors[name] = held.of(value)
        elif isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            scalars[name] = value.item() if isinstance(value, Tensor) else value
        else:
            raise ValueError(f"the optimizer's state {name} of {held.weight.name} is not elementwise")
    return tensors, scalars


def arrange(engine: Any, plan: Plan, rank: int) -> Arrangement:
    """What this rank writes, without copying it."""
    optimizer, stored_too = inner_optimizer(engine), stores_states(plan.training.optimizer.name)
    items: list[tuple[str, Tensor]] = []
    weights: dict[str, list[tuple[Fragment, dict[str, Tensor], dict[str, Number], int]]] = {}
    position = 0
    for held in written(engine, plan, rank):
        tensors, scalars = states_of(held, optimizer) if stored_too else ({}, {})
        states = {MASTER: held.master, **tensors}
        weights.setdefault(held.weight.name, []).append((held, states, scalars, position))
        for state, tensor in states.items():
            items.append((_tensor_name(held, state), tensor))
            position += tensor.numel() * tensor.element_size()
    random = generators()
    items += [(f"random/{name}", state) for name, state in random.items()]
    first, num_bytes = header(
        ((name, KINDS[tensor.dtype], tuple(tensor.shape)) for name, tensor in items), {"format": "partrain"}
    )
    places = {}
    for generator, bytes_ in random.items():
        places[generator] = (len(first) + position, bytes_.numel())
        position += bytes_.numel()
    stored = {name: _stored(parts, file_name(rank), len(first)) for name, parts in weights.items()}
    return Arrangement(first, tuple(tensor for _, tensor in items), num_bytes, stored, places)


def _tensor_name(held: Fragment, state: str) -> str:
    """`NAME/STATE/BOX/RANGE`; nothing reads it but people."""
    box = ",".join(f"{first}:{end}" for first, end in held.box)
    return f"{held.weight.name}/{state}/{box}/{held.start}:{held.stop}"


def _stored(
    parts: list[tuple[Fragment, dict[str, Tensor], dict[str, Number], int]], file: str, data_start: int
) -> StoredWeight:
    held, states, scalars, _ = parts[0]
    slices = tuple(
        Slice(held.box, held.start, held.stop, file, data_start + position) for held, _, _, position in parts
    )
    kinds = {state: KINDS[tensor.dtype] for state, tensor in states.items()}
    return StoredWeight(held.weight.shape, kinds, scalars, slices)


def room_for(wanted: Arrangement) -> Tensor:
    """Host memory [N] for the bytes of a file, every page of it touched: a first copy would wait for that."""
    on_gpu = any(tensor.is_cuda for tensor in wanted.tensors)
    return torch.empty(wanted.num_bytes, dtype=torch.uint8, pin_memory=on_gpu).zero_()


def copy(wanted: Arrangement, room: Tensor) -> None:
    """Fill `room` with the bytes of a file; training may go on after that."""
    start = 0
    for tensor in wanted.tensors:
        raw = tensor.view(torch.uint8)
        room.narrow(0, start, raw.numel()).copy_(raw, non_blocking=True)
        start += raw.numel()
    if room.is_pinned():
        torch.cuda.synchronize()


def generators() -> dict[str, Tensor]:
    """States of torch's generators, bytes [N] each."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found
