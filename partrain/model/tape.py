"""A layer as the list of its operators: what each reads and makes, and what autograd keeps of it.

The language in which a runtime says which tensors exist when; `cost/walk.py` plays it. Sizes are bytes on
one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INPUT = "x"
"""What a layer reads."""


@dataclass(frozen=True)
class Op:
    """One operator, forward and backward."""

    name: str
    reads: tuple[str, ...]
    """Activations it takes."""
    makes: str
    """Activation it hands on."""
    size: int
    """Bytes of what it makes; 0 where it is a view of what it reads first."""
    keeps: tuple[str, ...] = ()
    """Which of these autograd holds until the operator's backward pass."""
    extra: int = 0
    """Bytes of tensors made forward for the backward pass alone: statistics, masks, copies."""
    forward_work: int = 0
    """Bytes that exist only while it runs forward, beside all of the above."""
    backward_work: int = 0
    """Bytes that exist only while it runs backward, beside the gradients of what it reads."""
    weight: int = 0
    """Bytes of the gradients of its weights, each as large as the weight."""
    passes: tuple[str, ...] = ()
    """Reads whose gradient is the gradient of what it makes, in the same storage (sums, views)."""
    constant: tuple[str, ...] = ()
    """Reads that have no gradient."""
    ready: bool = False
    """Whether it makes its gradients on the way forward, as part of `extra`."""

    @property
    def is_view(self) -> bool:
        """Whether it makes no storage of its own."""
        return self.size == 0


@dataclass(frozen=True)
class Tape:
    """A layer: it reads `x`, and hands on what its last operator makes."""

    name: str
    ops: tuple[Op, ...]
    input_size: int
    """Bytes of `x`."""
    held: tuple[str, ...] = ()
    """Activations that a variable holds to the end of the forward pass, read again or not."""
    recompute: bool = False
    """Whether only `x` is kept, and the forward pass is run again before the backward pass."""

    @property
    def output_size(self) -> int:
        """Bytes of what it hands on."""
        return sizes(self)[self.ops[-1].makes]

    @property
    def weight(self) -> int:
        """Bytes of the gradients of all its weights."""
        return sum(op.weight for op in self.ops)


def sizes(tape: Tape) -> dict[str, int]:
    """Bytes of each activation; a view has those of what it looks at."""
    found = {INPUT: tape.input_size}
    for op in tape.ops:
        found[op.makes] = op.size or found[op.reads[0]]
    return found


def owners(tape: Tape) -> dict[str, str]:
    """Activation -> the one whose storage it is."""
    found = {INPUT: INPUT}
    for op in tape.ops:
        found[op.makes] = found[op.reads[0]] if op.is_view else op.makes
    return found


def last_reads(ops: Iterable[Op]) -> dict[str, int]:
    """Activation -> index of the last operator that reads it."""
    return {name: index for index, op in enumerate(ops) for name in op.reads}
