"""What others found out about data and machines, as values passed down to the pure rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.section import Count, Whole


def num_windows(num_tokens: int, *, sequence_length: int) -> int:
    """Sequences in a dataset; the last label of one is the first input of the next.

    >>> [num_windows(num_tokens, sequence_length=4) for num_tokens in (0, 4, 5, 8, 9)]
    [0, 0, 1, 1, 2]
    """
    return max(0, num_tokens - 1) // sequence_length


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """A dataset as the plan needs to know it."""

    source: str
    """As the job names it (paths made absolute)."""
    num_tokens: Whole | None
    """Tokens in all; None: without end (synthetic)."""
    vocab_size: Count | None
    """Every token is below this; None: any vocabulary will do (synthetic)."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The devices of one node, and what they can do."""

    device: Literal["cpu", "cuda"]
    """`cpu` or `cuda`."""
    name: str
    """Name of the device, as the catalogue or the driver has it."""
    num_devices: Whole
    """Devices of a node; on `cpu` ranks share the machine, and this is its cores."""
    memory_bytes: Whole | None
    """Memory of a device (of the whole machine on `cpu`); None: not known."""
    bf16_flops: float | None
    """Dense bf16 peak of a device in FLOP/s; None: not known."""
    fp32_flops: float | None
    """Peak of a device for fp32 matrix products in FLOP/s (not TF32); None: not known."""
    origin: str
    """Where these facts come from, in words."""
