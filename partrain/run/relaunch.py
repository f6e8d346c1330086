"""A job that is launched again: nothing of its earlier run is ever overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partrain.plan.plan import HIDDEN, Plan
from partrain.run.attempts import past_attempts, take_over
from partrain.run.folder import OWNERS_ALONE, RunFolder, write_whole
from partrain.run.launcher import read_launcher
from partrain.run.place import new_run_folder
from partrain.run.reading import read_object
from partrain.run.runs import RunChoiceError, RunInfo, list_runs

# What a plan says about itself; the same decision may be worded differently by another version.
_ABOUT = ("partrain", "origins", "notes")
_MOST_CHANGES = 12
_ANOTHER = "--new starts another run"


@dataclass(frozen=True)
class Relaunch:
    """Where a job is launched, and with which plan."""

    folder: RunFolder
    plan: Plan
    goes_on: bool
    """Whether it is a run that was begun before."""
    changes: tuple[str, ...] = ()
    """What is changed of that run."""


def relaunch(
    run_dir: Path, plan: Plan, job_text: str, *, new: bool, resume: bool = False, over_budget: bool = False
) -> Relaunch:
    """A folder for `plan`: of its run if that stopped, else a new one with job and plan in it.

    A run that stopped goes on with the plan that it has; with another one only if `resume` says so. A `new`
    one is started whatever there is. `over_budget`: it is started though the estimate says that it does not
    fit, which is written down. Raises RunChoiceError if the run still goes on, is done, or was another
    job; and if the folder cannot be written.
    """
    earlier = None if new else latest_run_of(run_dir, plan.name)
    if earlier is None:
        if resume:
            raise RunChoiceError(f"{plan.name} has no run in {run_dir} to resume", hint="leave out --resume")
        folder = new_run_folder(
            run_dir, plan.name, job=job_text, plan=plan.to_json(), over_budget=over_budget
        )
        return Relaunch(folder, plan, goes_on=False)
    changes = _changes(earlier, plan, resume=resume)
    try:
        left = take_over(earlier.folder, over_budget=over_budget)
        if changes:
            _replace(earlier.folder, plan, job_text, left)
    except OSError as error:
        message = f"{earlier.path} cannot be written: {error.strerror or error}"
        raise RunChoiceError(message, hint=_ANOTHER) from error
    return Relaunch(earlier.folder, plan if changes else _stored_plan(earlier), True, changes)


def _replace(folder: RunFolder, plan: Plan, job_text: str, left: Path) -> None:
    """Give a run another job and plan; what it had goes to what the launch before `left`."""
    for path in (folder.job, folder.plan):
        if path.exists():
            path.rename(left / path.name)
    write_whole(folder.job, job_text, mode=OWNERS_ALONE)
    write_whole(folder.plan, plan.to_json(), mode=OWNERS_ALONE)


def _stored_plan(earlier: RunInfo) -> Plan:
    """The plan that a run has. Raises RunChoiceError."""
    try:
        return Plan.from_json(earlier.folder.plan.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unreadable(earlier) from error


def latest_run_of(run_dir: Path, name: str) -> RunInfo | None:
    """The newest run of the job called `name` that was begun; None: it has none."""
    numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
    for info in list_runs(run_dir):
        planned = (read_object(info.folder.plan) or {}).get("name", name)
        if planned == name and numbered.fullmatch(info.name) and not _was_never_begun(info):
            return info
    return None


def _was_never_begun(info: RunInfo) -> bool:
    """Whether the launcher ended before it started anything, which would have left a log."""
    folder = info.folder
    return info.state == "lost" and not any(folder.logs.glob("*")) and not past_attempts(folder)


def _changes(earlier: RunInfo, plan: Plan, *, resume: bool) -> tuple[str, ...]:
    """What is changed of a run that may go on. Raises RunChoiceError where it may not."""
    where = f"{earlier.path} ({_standing(earlier)})"
    if earlier.state in ("running", "unknown"):
        launcher = read_launcher(earlier.folder)
        who = f", launched by process {launcher.pid} on {launcher.host}" if launcher else ""
        raise RunChoiceError(f"{plan.name} is running: {where}{who}", hint=f"wait, stop it, or {_ANOTHER}")
    before = read_object(earlier.folder.plan)
    if before is None:
        raise _unreadable(earlier)
    changes = plan_changes(before, json.loads(plan.to_json()))
    if changes and not resume:
        listed = "\n".join(f"      {change}" for change in _cut(changes))
        message = f"{plan.name} has changed since its run {where}:\n{listed}"
        raise RunChoiceError(
            message, hint=f"--resume goes on with that run under the changed job, {_ANOTHER}"
        )
    if earlier.state == "done" and not changes:
        raise RunChoiceError(f"{plan.name} is done: {where}", hint=_ANOTHER)
    if not changes:
        _stored_plan(earlier)
    return changes


def _unreadable(earlier: RunInfo) -> RunChoiceError:
    where = f"{earlier.path} ({_standing(earlier)})"
    return RunChoiceError(f"there is a run whose plan cannot be read: {where}", hint=_ANOTHER)


def _standing(info: RunInfo) -> str:
    of = "" if info.steps is None else f" of {info.steps}"
    loss = "" if info.last_loss is None else f", loss {info.last_loss:.4f}"
    return f"{info.state}, step {info.last_step}{of}{loss}"


def plan_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between two plans: `key.path: old -> new`, in the order of the new plan's keys.

    >>> plan_changes({"training": {"steps": 10, "seed": 1}}, {"training": {"steps": 20, "seed": 1}})
    ('training.steps: 10 -> 20',)
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = [path for path in {**new, **old} if path.split(".")[0] not in _ABOUT]
    missing = object()
    return tuple(
        f"{path}: {_words(path, old.get(path))} -> {_words(path, new.get(path))}"
        for path in paths
        if old.get(path, missing) != new.get(path, missing)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _words(path: str, value: Any) -> str:
    if path.startswith("env.") and value is not None:
        return HIDDEN
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _cut(changes: tuple[str, ...]) -> tuple[str, ...]:
    if len(changes) <= _MOST_CHANGES:
        return changes
    return (*changes[:_MOST_CHANGES], f"and {len(changes) - _MOST_CHANGES} more")
