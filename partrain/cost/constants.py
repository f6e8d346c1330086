"""Every fitted number of the estimate. All else follows from code that was read or arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """A fitted number."""

    name: str
    value: float
    source: str
    """Where it is measured, or the rows it was fitted on."""


CONTEXT_BYTES = Constant(
    "CUDA context and the kernels that are loaded",
    0.9 * 2**30,
    "H100-class devices: 0.7 GiB bare, 1.4 GiB after the first kernels; A100 0.5 to 0.9 (stas00, "
    "ml-engineering, performance/software)",
)
COMMUNICATOR_BYTES = Constant(
    "buffers of a communicator",
    0.35 * 2**30,
    "about 1.45 GiB for a world and its first groups (stas00, ml-engineering)",
)
RESERVE = Constant(
    "reserved beyond allocated, part of what comes and goes within a step",
    0.05,
    "the pairs of allocated and reserved bytes of bench/data/memory_measured.csv",
)
CONSTANTS = (CONTEXT_BYTES, COMMUNICATOR_BYTES, RESERVE)
