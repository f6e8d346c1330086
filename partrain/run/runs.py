"""The runs in a folder: which there are, how they stand, which one is meant."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path

from partrain.errors import RunError
from partrain.run.folder import RunFolder
from partrain.run.launcher import is_alive, read_launcher
from partrain.run.metrics import last_record
from partrain.run.reading import read_object
from partrain.run.records import Outcome, outcome_from
from partrain.spec.section import Count
from partrain.spec.values import read

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_ENDED = ("done", "failed", "interrupted")


class RunChoiceError(RunError):
    """The run that was asked for is not there, must not be touched, or has no place."""

    exit_code = 2


@dataclass(frozen=True)
class RunInfo:
    """A run as its files tell it."""

    name: str
    path: Path
    state: str
    """`running`, `done`, `failed`, `interrupted`; `lost`: its launcher is gone without a word; `unknown`: it
    was launched on another host and has left no word yet."""
    last_step: int
    """0: no step is recorded."""
    steps: int | None
    """Steps of the plan; None: the plan cannot be read."""
    last_loss: float | None
    started: float | None
    """Seconds since 1970; None: not known."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)


def list_runs(run_dir: Path) -> tuple[RunInfo, ...]:
    """The runs in `run_dir`, newest first; empty where there is no such folder."""
    infos = [run_info(RunFolder(path)) for path in _run_paths(run_dir)]
    return tuple(sorted(infos, key=lambda info: (info.started or 0.0, info.name), reverse=True))


def newest_run(run_dir: Path) -> RunInfo:
    """The run that was started last.

    Raises RunChoiceError where there is none.
    """
    runs = list_runs(run_dir)
    if not runs:
        raise RunChoiceError(f"there are no runs in {run_dir}", hint="partrain launch JOB starts one")
    return runs[0]


def find_run(run_dir: Path, name_or_path: str) -> RunInfo:
    """The run of that name in `run_dir`, or the one at that path.

    Raises RunChoiceError where there is none.
    """
    if RUN_NAME.fullmatch(name_or_path) and _is_run(run_dir / name_or_path):
        return run_info(RunFolder(run_dir / name_or_path))
    if name_or_path and _is_run(Path(name_or_path)):
        return run_info(RunFolder(Path(name_or_path).absolute()))
    names = [path.name for path in _run_paths(run_dir)]
    nearest = difflib.get_close_matches(name_or_path, names, n=3, cutoff=0.5) or names[:3]
    hint = f"runs in {run_dir}: {', '.join(nearest)}" if nearest else f"there are no runs in {run_dir}"
    raise RunChoiceError(f"no run {name_or_path!r}", hint=hint)


def run_info(folder: RunFolder) -> RunInfo:
    """What the files of a run tell."""
    record = last_record(folder.metrics)
    launcher = read_launcher(folder)
    return RunInfo(
        name=folder.path.name,
        path=folder.path,
        state=state_of(folder),
        last_step=record.step if record else 0,
        steps=_planned_steps(folder),
        last_loss=record.loss if record and math.isfinite(record.loss) else None,
        started=launcher.started if launcher else None,
    )


def _planned_steps(folder: RunFolder) -> int | None:
    training = (read_object(folder.plan) or {}).get("training")
    try:
        return read(Count, training.get("steps") if isinstance(training, dict) else None)
    except ValueError:
        return None


def state_of(folder: RunFolder) -> str:
    """How a run stands, in the words of `RunInfo.state`."""
    outcome = read_outcome(folder)
    if outcome is not None:
        return outcome.state
    launcher = read_launcher(folder)
    if launcher is None:
        return "lost"
    return {True: "running", False: "lost", None: "unknown"}[is_alive(launcher)]


def read_outcome(folder: RunFolder) -> Outcome | None:
    """How the run ended; None: it has not, or nobody could write it down."""
    try:
        outcome = outcome_from(read_object(folder.outcome))
    except ValueError:
        return None
    return outcome if outcome.state in _ENDED else None


def _run_paths(run_dir: Path) -> list[Path]:
    try:
        # A name with a dot in front is a folder that a launch is still filling.
        return sorted(path for path in run_dir.iterdir() if path.name[0] != "." and _is_run(path))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    folder = RunFolder(path)
    try:
        return folder.launch.is_file() or folder.plan.is_file()
    except (OSError, ValueError):  # not allowed to look; a NUL in the path
        return False
