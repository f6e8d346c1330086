"""The job: what the user asked for, section by section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from partrain.spec.data import DataSection
from partrain.spec.hardware import HardwareSection
from partrain.spec.launch import LaunchSection, MonitorSection, RunSection
from partrain.spec.model import ModelSection
from partrain.spec.parallel import ParallelSection
from partrain.spec.section import Name, Section
from partrain.spec.training import TrainingSection


class JobSpec(Section):
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
    parallel: ParallelSection = ParallelSection()
    """How it is spread over devices; left out: the simplest legal layout."""
    hardware: HardwareSection = HardwareSection()
    """What it is for; left out: this machine."""
    launch: LaunchSection = LaunchSection()
    """How its processes are started."""
    run: RunSection = RunSection()
    """Where its runs are kept."""
    monitor: MonitorSection = MonitorSection()
    """What is shown while it runs."""
    deepspeed: dict[str, JsonValue] = Field(default_factory=dict)
    """Raw DeepSpeed keys, from a checked list; a clash with what the plan decides is an error."""
