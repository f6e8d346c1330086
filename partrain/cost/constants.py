"""Every fitted number of the estimates, the benchmarks' own too. All else was read or is arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """A fitted number."""

    name: str
    value: float
    source: str
    """Where it is measured, or the rows of bench/data/memory_measured.csv that it was fitted on."""


CONTEXT_BYTES = Constant(
    "CUDA context and the kernels that are loaded",
    1.0 * 2**30,
    "H100 0.7 GiB bare and 1.4 GiB after the first kernels, A100 0.5 to 0.9: stas00, ml-engineering, "
    "training/performance",
)
COMMUNICATOR_BYTES = Constant(
    "buffers of a communicator",
    0.35 * 2**30,
    "about 1.45 GiB for a world and its first groups: stas00, ml-engineering",
)
RESERVE = Constant(
    "reserved beyond allocated, part of the peak",
    0.048,
    "rows simumax without a pipeline or on its last stage: pairs of allocated and reserved on B200",
)
RESERVE_OF_2021 = Constant(
    "the same with torch 1.8",
    0.087,
    "rows bsds3d-016 and bsz3: pairs on V100",
)
HOLES = Constant(
    "reserved beyond that, part of what waits of other micro-batches: what is freed between leaves holes",
    0.3,
    "rows bsds3d-013 to 015, simumax-002 and 024: pairs on stages with several micro-batches in flight",
)
OUTSIDE_OF_2021 = Constant(
    "context, communicators and buckets of a V100 run of 2021",
    2.44 * 2**30,
    "rows tr3m: what nvidia-smi says beyond the peak and the model in fp32",
)
PROCESS_BYTES = Constant(
    "host memory of a process with torch and DeepSpeed",
    0.5 * 2**30,
    "resident memory after both are imported, torch 2.13 for CPUs",
)
CONSTANTS = (
    CONTEXT_BYTES,
    COMMUNICATOR_BYTES,
    RESERVE,
    RESERVE_OF_2021,
    HOLES,
    OUTSIDE_OF_2021,
    PROCESS_BYTES,
)
