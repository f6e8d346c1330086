"""A weight: name, shape, how it is split over a tensor group, how it starts, whether it decays.

The table of a model's weights is the one truth that the estimates and the engine both read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROW_ALIGN = 8
"""Rows of a vocabulary shard are a multiple of this: matrix products of 16-bit numbers reach the tensor
cores at full rate when each dimension is a multiple of 8 (NVIDIA, Matrix Multiplication Background
User's Guide, "Tensor Core requirements")."""


@dataclass(frozen=True)
class Initial:
    """Distribution of a weight's first values."""

    kind: Literal["normal", "zeros", "ones"]
    std: float = 0.0


ZEROS = Initial("zeros")
ONES = Initial("ones")


@dataclass(frozen=True)
class Weight:
    """One weight of the whole model."""

    name: str
    layer: int
    """Pipeline layer that holds it: 0 the embedding, the last one the head."""
    shape: tuple[int, ...]
    """Whole, without padding."""
    initial: Initial
    split: int | None = None
    """Dim that is cut over the tensor group; None: each rank of the group holds a copy."""
    padded: bool = False
    """Whether the split dim is rounded up so that every shard has the same rows (vocabulary)."""
    decay: bool = False
    """Whether weight decay applies."""
    tied_to: str | None = None
    """Name of the weight that this is another use of; it counts once in the model."""

    @property
    def numel(self) -> int:
        """Elements of the whole weight."""
        return _product(self.shape)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def shard_size(weight: Weight, tp: int) -> int:
    """Length of the split dim on each rank, padding included.

    GPT-2's vocabulary of 50257 on two ranks: 25129 rows rounded up to 25136:

    >>> shard_size(Weight("w", 0, (50257, 768), ZEROS, split=0, padded=True), 2)
    25136
    """
    if weight.split is None:
        raise ValueError(f"{weight.name} is not split")
    size = weight.shape[weight.split]
    if weight.padded:
        return -(-size // (tp * ROW_ALIGN)) * ROW_ALIGN
    if size % tp:
        raise ValueError(f"{weight.name}: tp={tp} does not divide dim {weight.split} of {weight.shape}")
    return size // tp


def local_shape(weight: Weight, tp: int) -> tuple[int, ...]:
    """Shape of what one rank of a tensor group holds, padding included."""
    if weight.split is None:
        return weight.shape
    dim = weight.split
    return (*weight.shape[:dim], shard_size(weight, tp), *weight.shape[dim + 1 :])


def local_numel(weight: Weight, tp: int) -> int:
    """Elements that one rank of a tensor group holds, padding included."""
    return _product(local_shape(weight, tp))


def shard_range(weight: Weight, tp: int, shard: int) -> tuple[int, int]:
    """First and one past the last index on the split dim that `shard` holds of the real weight.

    The last shards of a padded weight hold fewer real rows than their size, perhaps none:

    >>> shard_range(Weight("w", 0, (61, 4), ZEROS, split=0, padded=True), 3, 2)
    (48, 61)
    """
    if weight.split is None:
        raise ValueError(f"{weight.name} is not split")
    size, whole = shard_size(weight, tp), weight.shape[weight.split]
    return min(shard * size, whole), min((shard + 1) * size, whole)
