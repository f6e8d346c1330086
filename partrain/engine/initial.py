"""First values of this rank's weights: nothing whole is ever made, and no layout changes them.

A weight is a grid of blocks of fixed size, each drawn from a generator seeded by (seed, weight name,
block). A rank draws the blocks that its shard touches and keeps what it holds of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.engine.tensor_parallel import mark
from partrain.model.weights import Weight, local_shape, shard_range

BLOCK = 1024
"""Rows and columns of a block: large enough that seeding costs nothing, small enough to waste little."""

Box = tuple[tuple[int, int], ...]


def materialise(
    module: nn.Module, group: TensorGroup, *, seed: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Give every meta parameter of `module` its first values."""
    for part in module.modules():
        for name, empty in list(part.named_parameters(recurse=False)):
            weight: Weight = empty.entry  # type: ignore[attr-defined]
            values = initial_values(weight, group, seed=seed, dtype=dtype)
            part.register_parameter(name, mark(nn.Parameter(values.to(device)), weight))


def initial_values(weight: Weight, group: TensorGroup, *, seed: int, dtype: torch.dtype) -> Tensor:
    """This rank's share of `weight`; padding is zero."""
    result = torch.full(local_shape(weight, group.size), float(weight.initial.kind == "ones"), dtype=dtype)
    if weight.initial.kind != "normal":
        return result
    held = _held(weight, group)
    for block, kept in _touched(weight, held):
        result[_within(kept, held)] = _block(weight, block, seed)[_within(kept, block)].to(dtype)
    return result


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where `box` lies in a tensor that holds `outer`."""
    return tuple(slice(a - zero, b - zero) for (a, b), (zero, _) in zip(box, outer, strict=True))


def _held(weight: Weight, group: TensorGroup) -> Box:
    """Range of indices on each dim that this rank holds of the real weight."""
    whole = [(0, size) for size in weight.shape]
    if weight.split is not None:
        whole[weight.split] = shard_range(weight, group.size, group.rank)
    return tuple(whole)


def _touched(weight: Weight, held: Box) -> Iterator[tuple[Box, Box]]:
    """(block, what is held of it) for each block of the grid that `held` meets."""
    ranges: list[list[tuple[int, int]]] = [
        [(start, min(start + BLOCK, size)) for start in range(first // BLOCK * BLOCK, end, BLOCK)]
        if first < end
        else []
        for (first, end), size in zip(held, weight.shape, strict=True)
    ]
    boxes: list[Box] = [()]
    for axis in ranges:
        boxes = [(*box, bounds) for box in boxes for bounds in axis]
    for box in boxes:
        kept = tuple((max(a, first), min(b, end)) for (a, b), (first, end) in zip(box, held, strict=True))
        yield box, kept


def _block(weight: Weight, block: Box, seed: int) -> Tensor:
    """The block's values, on the CPU in fp32: the same on every machine and device."""
    key = f"{seed}/{weight.name}/" + ",".join(str(start) for start, _ in block)
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    shape = [end - start for start, end in block]
    return torch.randn(shape, generator=generator) * weight.initial.std
