"""The plan: a job with every value decided, like a lock file. Workers read it and decide nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from partrain.layout.layout import Layout
from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.guard import GuardSection
from partrain.spec.hardware import MemoryShare
from partrain.spec.launch import EnvName
from partrain.spec.model import ModelSpec
from partrain.spec.optimizers import OptimizerSpec
from partrain.spec.section import Count, Fraction, Name, NonNegative, Text, Whole
from partrain.spec.training import (
    AttentionKernel,
    BatchRampSection,
    ChunkSize,
    LossScale,
    Precision,
    ScheduleSection,
)
from partrain.spec.values import plain, read

HIDDEN = "***"
"""Stands for a value that is not shown: a token or a key may be among the environment's values."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and with which numbers; the batch's shape is in the layout."""

    sequence_length: Count
    steps: Count
    precision: Precision
    loss_scale: LossScale
    loss_chunk_size: ChunkSize
    label_smoothing: Fraction
    z_loss: NonNegative
    seed: Whole
    optimizer: OptimizerSpec
    schedule: ScheduleSection
    batch_ramp: BatchRampSection | None = None
    compile: bool = False
    attention: AttentionKernel = "torch"
    tf32: bool = False
    prefetch: Whole = 0


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Sequences whose loss is measured from time to time and after the last step, the same each time."""

    every: Count
    """Steps from one evaluation to the next."""
    data: DatasetFacts
    first: Whole
    """First of the sequences. Where `data` is the training data, training uses only those before it."""
    num_sequences: Count

    def is_due(self, step: int, *, steps: int) -> bool:
        """Whether there is an evaluation after `step` of `steps`."""
        return step % self.every == 0 or step == steps


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """What a stage's worst rank is predicted to hold."""

    peak_bytes: Whole
    """The allocator's peak of allocated bytes; on CPUs the peak of live tensors."""
    reserved_bytes: Whole
    """The allocator's peak of reserved bytes."""
    device_bytes: Whole
    """What the device has to have: context and communicators too."""
    moment: str
    """The moment that sets the peak."""


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One pipeline stage."""

    stage: Whole
    first: Whole
    """First layer; layer 0 is the embedding, the last one the head."""
    last: Whole
    """Last layer, inclusive."""
    parameters: Count
    """Parameters that each rank of this stage holds, its padding of the vocabulary included."""
    memory: StageMemory | None = None
    """Predicted, to be compared with what is measured; None: not estimated."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A decision. The same job, machine and version give the same bytes."""

    version: Literal[1]
    partrain: str
    """Version of partrain that decided."""
    name: Name
    model: ModelSpec
    data: DatasetFacts
    training: TrainingPlan
    layout: Layout
    nodes: Count
    machine: MachineFacts
    memory_budget: MemoryShare
    """Part of the device's memory that the estimate may reach, of the host's on CPUs."""
    stages: tuple[StagePlan, ...]
    parameters: Count
    """Parameters of the whole model, each counted once."""
    flops_per_token: float
    """Model FLOPs a token, forward and backward, recomputation not counted."""
    guard: GuardSection
    deepspeed: dict[str, Any]
    """The engine's configuration."""
    env: dict[EnvName, str]
    run_dir: str
    log_every: Count
    checkpoint: CheckpointSection
    origins: dict[str, str]
    """Key path -> where its value comes from, in words."""
    notes: tuple[str, ...]
    """What the user should know: padding, idle devices, why an `auto` became what it is."""
    evaluation: EvaluationPlan | None = None
    """What is evaluated and when; None: nothing."""
    track_memory: bool = False
    """Whether CPU ranks count the bytes of their tensors."""
    weights: Text | None = None
    """Absolute path of the published folder that training starts from; None: weights begin at random."""

    @property
    def end_of_training_data(self) -> int | None:
        """The sequence of `data` before which training ends; None: it uses all."""
        apart = self.evaluation
        return apart.first if apart is not None and apart.data == self.data else None

    def without_secrets(self) -> Plan:
        """This plan as it may be shown: the names in `env` stay, their values are HIDDEN."""
        return replace(self, env=dict.fromkeys(self.env, HIDDEN))

    def to_json(self) -> str:
        """Indented JSON, keys in the order above."""
        return json.dumps(plain(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises ValueError on anything else, with the key paths that are wrong.
        """
        try:
            return read(cls, json.loads(text, parse_constant=_finite, parse_float=_finite))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is no number")
    return float(text)
