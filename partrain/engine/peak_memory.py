"""The most memory that each rank held so far, told by all ranks to all."""

from __future__ import annotations

import math
import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from partrain.engine.memory_meter import MemoryMeter
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan


@dataclass(frozen=True)
class Peaks:
    """Bytes."""

    largest: int
    """Of the fullest rank."""
    most: tuple[int, ...]
    """Of the fullest rank of each stage; empty where what is measured is not what the plan predicts."""
    least: tuple[int, ...]
    """Of the emptiest."""


@dataclass(frozen=True)
class Used:
    """Bytes on a device now; None: not known."""

    allocated: int | None
    """By this rank's tensors."""
    reserved: int | None = None
    """By its caching allocator."""
    outside: int | None = None
    """By all else, other processes among it."""


class PeakMemory:
    """Measures this rank: the allocator's peak on GPUs; on CPUs the tensors where the plan has them counted,
    else all that is resident."""

    def __init__(self, plan: Plan, *, rank: int, device: torch.device) -> None:
        self._device = device
        self._stage, self._num_stages = coordinate_of(rank, plan.layout).pp, plan.layout.pp
        self._meter = MemoryMeter() if plan.track_memory and device.type == "cpu" else None
        self.held_bytes: int | None = None
        """What tensors held when a step began; None: none has, or it is not known."""

    def counting(self) -> AbstractContextManager[object]:
        """While tensors are counted, if they are."""
        return self._meter or nullcontext()

    def here(self) -> int:
        """Bytes of this rank."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._meter:
            return self._meter.peak_bytes
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def used(self) -> Used:
        """What is used now."""
        if self._device.type != "cuda":
            return Used(self._allocated())
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        return Used(self._allocated(), reserved, total - free - reserved)

    def begin(self) -> None:
        """A step begins."""
        self.held_bytes = self._allocated()

    def _allocated(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return self._meter.live_bytes if self._meter else None

    def peaks(self) -> Peaks:
        """Of all ranks. Collective over the world."""
        stages, here = self._num_stages, float(self.here())
        found = torch.full((2, stages), -math.inf, dtype=torch.float64)
        found[:, self._stage] = torch.tensor((here, -here), dtype=torch.float64)
        found = found.to(self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        most, least = found.tolist()
        if self._device.type == "cpu" and not self._meter:
            return Peaks(int(max(most)), (), ())
        return Peaks(int(max(most)), tuple(map(int, most)), tuple(-int(value) for value in least))
