"""The hardware the job is for."""

from __future__ import annotations

from dataclasses import dataclass

from partrain.spec.section import Count


@dataclass(frozen=True, kw_only=True)
class HardwareSection:
    """The `hardware` section; left out, it is the machine that partrain runs on."""

    nodes: Count = 1
    """Machines."""
    node: str | None = None
    """Kind of machine: a catalogue name (`dgx-h100`), a number of devices of a kind
    (`8xa100-80g`), or `cpu`; default: this machine."""
