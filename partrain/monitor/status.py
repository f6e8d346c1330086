"""What a run folder tells of its run beyond its state: the last step, the time left, what cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partrain.run.launcher import read_launcher
from partrain.run.metrics import last_evaluation, last_record
from partrain.run.reading import read_object
from partrain.run.records import EvaluationRecord, Outcome, StepRecord
from partrain.run.runs import RunInfo, read_outcome


@dataclass(frozen=True)
class RunStatus:
    """A run as its folder tells it."""

    info: RunInfo
    last: StepRecord | None
    """The last step's record."""
    evaluation: EvaluationRecord | None
    """The last evaluation's record."""
    left_s: float | None
    """Seconds to the last step at the speed of the last one; None: not running, or not known."""
    outcome: Outcome | None
    damaged: tuple[str, ...]
    """Names of files that are there and cannot be read."""


def read_status(info: RunInfo) -> RunStatus:
    """The status of a run; what is missing or damaged in its folder is left out, and said."""
    last, outcome = last_record(info.folder.metrics), read_outcome(info.folder)
    left = None
    if last is not None and info.state == "running" and info.steps is not None:
        left = max(0, info.steps - last.step) * last.step_s
    evaluation = last_evaluation(info.folder.metrics)
    return RunStatus(info, last, evaluation, left, outcome, _damaged(info, last, outcome))


def _damaged(info: RunInfo, last: StepRecord | None, outcome: Outcome | None) -> tuple[str, ...]:
    folder = info.folder
    readable = (
        (folder.plan, read_object(folder.plan) is not None),
        (folder.launch, read_launcher(folder) is not None),
        (folder.outcome, outcome is not None),
        (folder.metrics, last is not None or _is_empty(folder.metrics)),
    )
    return tuple(path.name for path, is_readable in readable if not is_readable and path.exists())


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0
