"""A job that is launched again: nothing of its earlier run is ever overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder, write_whole
from partrain.run.launcher import read_launcher
from partrain.run.reading import read_object
from partrain.run.runs import RunChoiceError, RunInfo, list_runs, new_run_folder

# What a plan says about itself; the same decision may be worded differently by another version.
_ABOUT = ("partrain", "origins", "notes")
_MOST_CHANGES = 12
_ANOTHER = "--new starts another run"


def relaunch(run_dir: Path, plan: Plan, job_text: str, *, new: bool) -> RunFolder:
    """A new folder for `plan`, with job and plan in it, if it has no run yet or a `new` one is wanted.

    Raises RunChoiceError if there is one: it still runs, is done, cannot be gone on with, or was another job.
    """
    earlier = None if new else latest_run_of(run_dir, plan.name)
    if earlier is not None:
        _refuse(earlier, plan)
    folder = new_run_folder(run_dir, plan.name)
    write_whole(folder.job, job_text)
    write_whole(folder.plan, plan.to_json())
    return folder


def latest_run_of(run_dir: Path, name: str) -> RunInfo | None:
    """The newest run of the job called `name`; None: it has none."""
    numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
    for info in list_runs(run_dir):
        planned = (read_object(info.folder.plan) or {}).get("name", name)
        if planned == name and numbered.fullmatch(info.name):
            return info
    return None


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
        f"{path}: {_words(old.get(path))} -> {_words(new.get(path))}"
        for path in paths
        if old.get(path, missing) != new.get(path, missing)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _words(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _cut(changes: tuple[str, ...]) -> tuple[str, ...]:
    if len(changes) <= _MOST_CHANGES:
        return changes
    return (*changes[:_MOST_CHANGES], f"and {len(changes) - _MOST_CHANGES} more")
