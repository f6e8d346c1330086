"""A job that is launched again: nothing of its earlier run is ever overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partrain.plan.plan import HIDDEN, Plan
from partrain.run.folder import RunFolder
from partrain.run.launcher import read_launcher
from partrain.run.place import new_run_folder
from partrain.run.reading import read_object
from partrain.run.runs import RunChoiceError, RunInfo, list_runs

# What a plan says about itself; the same decision may be worded differently by another version.
_ABOUT = ("partrain", "origins", "notes")
_MOST_CHANGES = 12
_ANOTHER = "--new starts another run"


def relaunch(run_dir: Path, plan: Plan, job_text: str, *, new: bool, over_budget: bool = False) -> RunFolder:
    """A new folder for `plan`, with job and plan in it, if it has no run yet or a `new` one is wanted.

    `over_budget`: it is started though the estimate says that it does not fit, which is written down.
    Raises RunChoiceError if there is one: it still runs, is done, cannot be gone on with, or was another job;
    and if the folder cannot be written.
    """
    earlier = None if new else latest_run_of(run_dir, plan.name)
    if earlier is not None:
        _refuse(earlier, plan)
    return new_run_folder(run_dir, plan.name, job=job_text, plan=plan.to_json(), over_budget=over_budget)


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
    return info.state == "lost" and not any(info.folder.logs.glob("*"))


def _refuse(earlier: RunInfo, plan: Plan) -> None:
    where = f"{earlier.path} ({_standing(earlier)})"
    if earlier.state in ("running", "unknown"):
        launcher = read_launcher(earlier.folder)
        who = f", launched by process {launcher.pid} on {launcher.host}" if launcher else ""
        raise RunChoiceError(f"{plan.name} is running: {where}{who}", hint=f"wait, stop it, or {_ANOTHER}")
    before = read_object(earlier.folder.plan)
    changes = plan_changes(before or {}, json.loads(plan.to_json()))
    if before is None:
        raise RunChoiceError(f"{plan.name} has a run whose plan cannot be read: {where}", hint=_ANOTHER)
    if changes:
        listed = "\n".join(f"      {change}" for change in _cut(changes))
        raise RunChoiceError(f"{plan.name} has changed since its run {where}:\n{listed}", hint=_ANOTHER)
    if earlier.state == "done":
        raise RunChoiceError(f"{plan.name} is done: {where}", hint=_ANOTHER)
    message = f"{plan.name} has a run that stopped: {where}; this version keeps no checkpoints to go on from"
    raise RunChoiceError(message, hint=_ANOTHER)


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
