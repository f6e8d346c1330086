"""The hardware the job is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from partrain.spec.section import Bounds, Count, Positive, Text

BY_HAND = "node: {name: my-gpu, num_devices: 8, memory_gib: 79.1}"
"""How a machine's numbers are given."""

MemoryShare = Annotated[float, Bounds(gt=0, le=1, meaning="the part of the device's memory that may be used")]


@dataclass(frozen=True, kw_only=True)
class NodeSection:
    """The `hardware.node` section: a machine that the catalogue does not have."""

    name: Text
    """The device, in the driver's words or parts of them."""
    num_devices: Count
    """Devices of a machine."""
    memory_gib: Positive
    """Memory of a device in GiB, as the driver reports it; less than the maker's figure."""
    bf16_tflops: Positive | None = None
    """Dense bf16 peak of a device in TFLOP/s; left out: not known."""
    fp32_tflops: Positive | None = None
    """fp32 peak of a device in TFLOP/s, not TF32; left out: not known."""


@dataclass(frozen=True, kw_only=True)
class HardwareSection:
    """The `hardware` section; left out, it is the machine that partrain runs on."""

    nodes: Count = 1
    """Machines."""
    node: str | NodeSection | None = None
    """Kind of machine: a catalogue name (`dgx-h100`), a number of devices of a kind
    (`8xa100-80g`), `cpu`, or its numbers; default: this machine."""
    memory_budget: MemoryShare = 0.92
    """Part of the device's memory that the estimate may reach, of the host's on CPUs, which all ranks share;
    the default leaves room for what fragmentation and libraries may take beyond it."""
