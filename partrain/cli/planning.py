"""From a file that a command is given to a plan: reads, asks the rooms, decides nothing itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partrain.data.facts import find_facts, find_validation_facts
from partrain.errors import DataError, Fault, Place, SpecError
from partrain.launch.machine import find_machine
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.data import share_of
from partrain.spec.files import NoText, read_bytes
from partrain.spec.load import Reading, read_job_text

if TYPE_CHECKING:
    from partrain.plan.advise import Fix
    from partrain.spec.facts import DatasetFacts, MachineFacts
    from partrain.spec.job import JobSpec


@dataclass(frozen=True)
class Planned:
    """A job and its plan."""

    reading: Reading
    plan: Plan
    machine: MachineFacts
    """This machine, as it was found."""
    data: DatasetFacts
    validation: DatasetFacts | None
    """The file that is evaluated on; None: there is none."""

    @property
    def job(self) -> JobSpec:
        """What the job file says."""
        assert self.reading.job is not None
        return self.reading.job


def plan_job(file: Path, overrides: Sequence[str] | None) -> Planned:
    """The plan of the job in `file`, for the machine it names or for this one.

    Raises SpecError or InfeasibleError with all that stands against it.
    """
    return plan_of(job_reading(file, overrides))


def job_reading(file: Path, overrides: Sequence[str] | None) -> Reading:
    """What the job in `file` says, with its faults.

    Raises SpecError where the file cannot be read, or is a plan.
    """
    data = file_bytes(file)
    if is_plan(data):
        fix = f"partrain launch {shlex.quote(str(file))}"
        raise SpecError([Fault("", "a plan came, not a job", "a job file", fix, Place(str(file)))])
    return read_job_text(data, source=str(file), overrides=overrides or (), environ=os.environ)


def plan_job_text(
    data: bytes, file: Path, overrides: Sequence[str] | None, *, goes_on: bool = False
) -> Planned:
    """As `plan_job`, of a job file that has been read; `goes_on` as in `plan_of`."""
    reading = read_job_text(data, source=str(file), overrides=overrides or (), environ=os.environ)
    return plan_of(reading, goes_on=goes_on)


def plan_of(reading: Reading, *, goes_on: bool = False) -> Planned:
    """The plan of a job whose text has been understood.

    `goes_on`: its run may go on from a checkpoint, and then needs the folder no more that it started from.
    """
    job = reading.job
    data, data_faults = _facts(lambda: find_facts(job.data.train) if job else None)
    validation, more_faults = _facts(lambda: _validation(job, data))
    machine = find_machine(os.environ, cpu=job is not None and job.hardware.node == "cpu")
    weight_faults, config = _weight_faults(job, data), None
    if goes_on and job is not None and job.model.from_ is not None:
        config = _config_of_run(job, job.model.from_, is_sound=not weight_faults)
    faults = (*data_faults, *more_faults, *(weight_faults if config is None else ()))
    plan = decide(
        reading, machine=machine, data=data, validation=validation, data_faults=faults, config=config
    )
    assert data is not None
    return Planned(reading, plan, machine, data, validation)


def fixes_of(planned: Planned) -> tuple[Fix, ...]:
    """What would make the job fit; empty when it does."""
    from partrain.plan.advise import Facts, advise

    return advise(planned.reading, planned.plan, Facts(planned.machine, planned.data, planned.validation))


def _facts(find: Callable[[], DatasetFacts | None]) -> tuple[DatasetFacts | None, Sequence[Fault]]:
    try:
        return find(), ()
    except DataError as error:
        return None, error.faults


def _weight_faults(job: JobSpec | None, data: DatasetFacts | None) -> tuple[Fault, ...]:
    """What is wrong with the weights that the job starts from; its model is judged elsewhere."""
    if job is None or job.model.from_ is None:
        return ()
    from partrain.checkpoint.published import weight_faults
    from partrain.spec.resolve import resolve_model

    vocabulary = data.vocab_size if data else None
    found = resolve_model(job.model, sequence_length=job.training.sequence_length, vocab_size=vocabulary)
    return weight_faults(Path(job.model.from_), found.model, path="model.from") if found.model else ()


def _config_of_run(job: JobSpec, folder: str, *, is_sound: bool) -> Mapping[str, Any] | None:
    """What the config in a folder that is no longer `is_sound` stated when the job's run was begun."""
    from partrain.launch.begun import begun_with
    from partrain.spec.huggingface import hf_fields

    _, unreadable = hf_fields(folder)
    if is_sound and not unreadable:
        return None
    return begun_with(Path(job.run.dir), job.name, folder)


def _validation(job: JobSpec | None, train: DatasetFacts | None) -> DatasetFacts | None:
    """The file that is evaluated on; None: there is none."""
    named = job.data.validation if job else None
    if not isinstance(named, str) or share_of(named) is not None:
        return None
    return find_validation_facts(named, train)


def file_bytes(file: Path) -> bytes:
    """The bytes of a job or plan.

    Raises SpecError where the file cannot be read.
    """
    try:
        return read_bytes(file)
    except NoText as error:
        raise SpecError(error.args) from None


def is_plan(data: bytes) -> bool:
    """Whether `data` is meant to be a plan, by what only plans have: a job may be written as JSON too."""
    if not data.lstrip().startswith(b"{"):
        return False
    from partrain.run.reading import object_in

    return {"layout", "stages", "deepspeed"} <= (object_in(data) or {}).keys()


def plan_in(data: bytes, file: Path, *, goes_on: bool = False) -> Plan:
    """The plan that `partrain plan --out` wrote into `file`, judged again: someone may have edited it.

    `goes_on` as in `plan_of`. Raises SpecError where there is none, or with all that stands against it.
    """
    from dataclasses import replace

    from partrain.plan.judge import plan_faults
    from partrain.plan.memory import plan_memory, stage_plans

    place, fix = Place(str(file)), f"partrain plan JOB --out {shlex.quote(str(file))}"
    try:
        plan = Plan.from_json(data.decode())
    except ValueError as error:
        message = f"this is not a plan of this version: {error}"
        raise SpecError([Fault("", message, fix=fix, place=place)]) from error
    faults = plan_faults(plan)
    if not faults and plan.weights is not None:
        from partrain.checkpoint.published import weight_faults
        from partrain.launch.begun import begun_with

        faults = weight_faults(Path(plan.weights), plan.model, path="weights")
        if faults and goes_on and begun_with(Path(plan.run_dir), plan.name, plan.weights) is not None:
            faults = ()
    if faults:
        raise SpecError([replace(fault, place=place) for fault in faults])
    return replace(plan, stages=stage_plans(plan_memory(plan)))
