"""A layout that is asked for, with what it has to go with."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from partrain.layout.layout import ZeroStage
from partrain.spec.facts import MachineFacts
from partrain.spec.model import ModelSpec
from partrain.spec.optimizers import OptimizerName
from partrain.spec.parallel import Offload
from partrain.spec.training import AttentionKernel, BatchRampSection, LossScale, Precision

MAX_CPU_RANKS = 64
"""Ranks on one machine without GPUs, where each is a process with libraries of its own: more is a slip."""


@dataclass(frozen=True)
class Proposal:
    """A layout to be judged, and what it is for."""

    model: ModelSpec | None
    """None: not known, and what depends on it is not judged."""
    machine: MachineFacts
    nodes: int
    sequence_length: int
    global_batch_size: int
    precision: Precision
    dp: int
    pp: int
    tp: int
    zero: ZeroStage
    sequence_parallel: bool
    micro_batch_size: int | None
    """None: left to be chosen, and none divides what each replica gets."""
    offload: Offload = "none"
    loss_scale: LossScale = "dynamic"
    optimizer: OptimizerName = "adamw"
    compile: bool = False
    attention: AttentionKernel = "torch"
    tf32: bool = False
    track_memory: bool = False
    batch_ramp: BatchRampSection | None = None

    @property
    def batch_divisor(self) -> int:
        """What divides the batch of every step; `global_batch_size` where that does not rise."""
        ramp = self.batch_ramp
        return gcd(self.global_batch_size, *((ramp.start, ramp.increment) if ramp else ()))

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp * self.pp * self.tp

    @property
    def room(self) -> int:
        """Ranks that the hardware has room for."""
        on_cpu = self.machine.device == "cpu"
        return self.nodes * (MAX_CPU_RANKS if on_cpu else self.machine.num_devices)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches a replica works through in one step, rounded down where they are not whole."""
        return self.global_batch_size // (self.dp * (self.micro_batch_size or 1))
