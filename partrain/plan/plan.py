"""The plan: a job with every value decided, like a lock file. Workers read it and decide nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from partrain.layout.layout import Layout
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.launch import EnvName
from partrain.spec.model import ModelSpec
from partrain.spec.section import Count, Name, Section, Whole
from partrain.spec.training import OptimizerSection, Precision, ScheduleSection


class TrainingPlan(Section):
    """How long and with which numbers; the batch's shape is in the layout."""

    sequence_length: Count
    steps: Count
    precision: Precision
    seed: Whole
    optimizer: OptimizerSection
    schedule: ScheduleSection


class StagePlan(Section):
    """One pipeline stage."""

    stage: Whole
    first: Whole
    """First layer; layer 0 is the embedding, the last one the head."""
    last: Whole
    """Last layer, inclusive."""
    parameters: Count
    """Parameters that each rank of this stage holds, its padding of the vocabulary included."""


class Plan(Section):
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
    stages: tuple[StagePlan, ...]
    parameters: Count
    """Parameters of the whole model, each counted once."""
    flops_per_token: float
    """Model FLOPs a token, forward and backward, recomputation not counted."""
    deepspeed: dict[str, JsonValue]
    """The engine's configuration."""
    env: dict[EnvName, str]
    run_dir: str
    log_every: Count
    origins: dict[str, str]
    """Key path -> where its value comes from, in words."""
    notes: tuple[str, ...]
    """What the user should know: padding, idle devices, why an `auto` became what it is."""

    def to_json(self) -> str:
        """Indented JSON, keys in the order above."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises ValueError (pydantic's ValidationError) on anything else.
        """
        return cls.model_validate_json(text)
