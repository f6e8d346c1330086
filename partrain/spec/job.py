"""The job: what the user asked for, section by section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.data import DataSection
from partrain.spec.guard import GuardSection
from partrain.spec.hardware import HardwareSection
from partrain.spec.launch import LaunchSection, MonitorSection, RunSection
from partrain.spec.model import ModelSection
from partrain.spec.parallel import ParallelSection
from partrain.spec.section import Name
from partrain.spec.training import TrainingSection


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job file."""

    version: Literal[1]
    """Version of the job format."""
    name: Name
    """Name of the job; its runs are kept under it."""
    model: ModelSection
    """What is trained."""
    data: DataSection
    """What it is trained on."""
    training: TrainingSection
    """How it is trained."""
    parallel: ParallelSection = field(default_factory=ParallelSection)
    """How it is spread over devices; left out: the simplest legal layout."""
    hardware: HardwareSection = field(default_factory=HardwareSection)
    """What it is for; left out: this machine."""
    launch: LaunchSection = field(default_factory=LaunchSection)
    """How its processes are started."""
    run: RunSection = field(default_factory=RunSection)
    """Where its runs are kept."""
    monitor: MonitorSection = field(default_factory=MonitorSection)
    """What is shown while it runs."""
    guard: GuardSection = field(default_factory=GuardSection)
    """What is done when it goes wrong by itself."""
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    """When it is saved, and which checkpoints stay."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Raw DeepSpeed keys, from a checked list; a clash with what the plan decides is an error."""
