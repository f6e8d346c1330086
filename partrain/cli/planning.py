"""From a file that a command is given to a plan: reads, asks the rooms, decides nothing itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from partrain.data.facts import find_facts
from partrain.errors import DataError, Fault, SpecError
from partrain.launch.machine import find_machine
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.load import Reading, read_job

if TYPE_CHECKING:
    from partrain.spec.facts import DatasetFacts
    from partrain.spec.job import JobSpec


@dataclass(frozen=True)
class Planned:
    """A job and its plan."""

    job: JobSpec
    plan: Plan


def plan_job(file: Path, overrides: Sequence[str] | None) -> Planned:
    """The plan of the job in `file`, for the machine it names or for this one.

    Raises SpecError or InfeasibleError with all that stands against it.
    """
    return plan_of(read_job(file, overrides=overrides or (), environ=os.environ))


def plan_of(reading: Reading) -> Planned:
    """The plan of a job that has been read."""
    data, data_faults = _facts(reading.job)
    plan = decide(reading, machine=find_machine(os.environ), data=data, data_faults=data_faults)
    assert reading.job is not None
    return Planned(reading.job, plan)


def _facts(job: JobSpec | None) -> tuple[DatasetFacts | None, Sequence[Fault]]:
    if job is None:
        return None, ()
    try:
        return find_facts(job.data.train), ()
    except DataError as error:
        return None, error.faults


def read_plan(file: Path) -> Plan:
    """The plan that `partrain plan --out` wrote.

    Raises SpecError where the file is none.
    """
    try:
        return Plan.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError([Fault("", f"{file}: {error.strerror}")]) from error
    except ValueError as error:
        message = f"{file} is not a plan of this version: {error}"
        raise SpecError([Fault("", message, fix=f"partrain plan JOB --out {file}")]) from error
