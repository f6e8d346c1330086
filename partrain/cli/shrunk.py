"""`partrain rehearse JOB --shrink`: a small job of the same layout, launched, saved and resumed here."""

from __future__ import annotations

import gc
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from partrain.cli import render
from partrain.cli.console import Console
from partrain.cli.outcomes import show_outcome
from partrain.cli.planning import Planned, job_reading, plan_job_text, plan_of
from partrain.errors import LaunchError, RunError
from partrain.launch.host import free_memory_bytes
from partrain.launch.local import check_ready, check_room, local_script
from partrain.launch.supervise import supervise
from partrain.plan.plan import Plan
from partrain.plan.shrink import MOST_RANKS, STEPS, Change, Shrunk, shrunk, stand_ins, with_stand_ins
from partrain.run.folder import RunFolder
from partrain.run.metrics import Tail, record_from
from partrain.run.records import EvaluationRecord, Outcome, StepRecord
from partrain.run.relaunch import relaunch
from partrain.units import format_bytes, format_seconds

RANK_BYTES = 400 * 2**20
"""Resident memory of a process with torch, DeepSpeed and next to no model: 400 to 410 MiB on Linux, the
libraries that all of them share among it."""

_NOT_SHOWN = "speed; memory (partrain estimate); kernels of GPUs; the network between machines"


@dataclass(frozen=True)
class SmallRun:
    """What the launches of a small job came to."""

    plan: Plan
    folder: RunFolder
    outcome: Outcome
    """The last launch's."""
    resumed: bool
    """Whether the last launch went on from the checkpoint of the one before."""
    steps: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    time_s: float

    @property
    def saves(self) -> bool:
        """Whether the job is saved at all."""
        return self.plan.checkpoint.every != "none"

    @property
    def fault(self) -> str:
        """What is wrong though the ranks ended as they should; empty: nothing."""
        if self.outcome.state != "done":
            return ""
        losses = [(f"the loss of step {record.step}", record.loss) for record in self.steps]
        losses += [
            (f"the validation loss after step {it.step}", it.validation_loss) for it in self.evaluations
        ]
        wrong = next((name for name, loss in losses if not math.isfinite(loss)), None)
        if wrong is not None:
            return f"{wrong} is not finite"
        steps = [record.step for record in self.steps]
        if steps != list(range(1, STEPS + 1)):
            return f"steps {', '.join(map(str, steps))} are recorded, not 1 to {STEPS}"
        is_whole = self.resumed or not self.saves
        return "" if is_whole else "it began anew instead of going on from its checkpoint"

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return RunError.exit_code if self.fault else self.outcome.exit_code

    @property
    def has_failed(self) -> bool:
        """Whether there is something to be looked for in the run's folder."""
        return bool(self.fault) or self.outcome.state == "failed"


def rehearse_shrunk(job: Path, overrides: Sequence[str] | None, *, as_json: bool) -> None:
    """Run the job in `job` small, and say what of it was, and what it came to; ends the command."""
    gc.enable()  # what follows takes minutes
    planned, absent = _planned(job, overrides)
    small = shrunk(planned.job, planned.plan, most=_most_ranks())
    small = replace(small, changes=(*absent, *small.changes))
    runs = _runs_folder()
    kept = False
    try:
        run = _rehearsed(small, runs, show=not as_json)
        kept = run.has_failed
    finally:
        if not kept:
            shutil.rmtree(runs, ignore_errors=True)
    if as_json:
        render.say_json(_document(run, small))
    else:
        _show(run, small, planned.plan)
    raise typer.Exit(run.exit_code)


def _planned(file: Path, overrides: Sequence[str] | None) -> tuple[Planned, tuple[Change, ...]]:
    """The job as it is, but for data that are not here."""
    reading = job_reading(file, overrides)
    if reading.job is None:
        return plan_of(reading), ()
    absent = stand_ins(reading.job, lambda path: os.path.exists(os.path.expanduser(path)))
    return plan_of(replace(reading, job=with_stand_ins(reading.job, absent))), absent


def _most_ranks() -> int:
    """Processes for which this machine has the memory now; two an axis are tried whatever it has."""
    free = free_memory_bytes()
    return MOST_RANKS if free is None else max(1, min(MOST_RANKS, free // RANK_BYTES))


def _runs_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="partrain-rehearsal-"))
    except OSError as error:
        message = f"no temporary folder can be made: {error.strerror or error}"
        raise LaunchError(message, hint="TMPDIR names a folder for them") from error


def _rehearsed(small: Shrunk, runs: Path, *, show: bool) -> SmallRun:
    """The small job from its beginning to its end: in two launches where it is saved, else in one."""
    began, first = time.monotonic(), f"training.steps={STEPS // 2}"
    saves = small.job["checkpoint"]["every"] != "none"
    plan, folder, outcome = _launched(small, [first] if saves else [], runs, show=show)
    resumed = False
    if saves and outcome.state == "done":
        plan, folder, outcome = _launched(small, [], runs, show=show, resume=True)
        resumed = not folder.redone.exists()
    records = Tail(folder.metrics, record_from).read()
    steps = tuple(record for record in records if isinstance(record, StepRecord))
    evaluations = tuple(record for record in records if isinstance(record, EvaluationRecord))
    return SmallRun(plan, folder, outcome, resumed, steps, evaluations, time.monotonic() - began)


def _launched(
    small: Shrunk, overrides: list[str], runs: Path, *, show: bool, resume: bool = False
) -> tuple[Plan, RunFolder, Outcome]:
    """One launch, as `partrain launch` does it."""
    planned = plan_job_text(small.text.encode(), Path("the small job"), overrides)
    check_ready(planned.plan, planned.machine)
    check_room(planned.plan, runs)
    run = relaunch(runs, planned.plan, small.text, new=not resume, resume=resume)
    script = local_script(run.plan, run.folder, python=sys.executable, environ=os.environ)
    if not show:
        return run.plan, run.folder, supervise(script, run.folder, on_event=lambda event: None)
    with Console(run.plan) as console:
        return run.plan, run.folder, supervise(script, run.folder, on_event=console.on_event)


def _document(run: SmallRun, small: Shrunk) -> dict[str, Any]:
    """What `partrain rehearse JOB --shrink --json` prints."""
    layout = run.plan.layout
    return {
        "ok": not run.exit_code,
        "exit_code": run.exit_code,
        "error": run.fault,
        "ranks": layout.world_size,
        "layout": asdict(layout),
        "losses": [record.loss for record in run.steps],
        "validation_losses": [record.validation_loss for record in run.evaluations],
        "saved": run.saves and bool(run.steps),
        "resumed": run.resumed,
        "time_s": run.time_s,
        "changes": [
            {"path": change.path, "from": change.before, "to": change.after, "why": change.why}
            for change in small.changes
        ],
        "run": str(run.folder.path) if run.has_failed else None,
        "outcome": asdict(run.outcome),
    }


def _show(run: SmallRun, small: Shrunk, real: Plan) -> None:
    """The verdict, what was reduced, what was done; of a run that was interrupted only that."""
    if run.outcome.state != "done":
        show_outcome(run.outcome, run.folder)
    else:
        render.say()
        render.verdict(*(("failed", run.fault) if run.fault else ("ok", _in_short(run))))
    if run.outcome.state != "interrupted":
        render.say()
        render.pairs(_rows(run, small, real))


def _rows(run: SmallRun, small: Shrunk, real: Plan) -> dict[str, str]:
    """What was trained in the job's place, and what it came to."""
    layouts, alike = _ranks(run.plan, real), _alike(run.plan, small.changes)
    rows = {"ranks": layouts, "as in the job": alike, **_change_rows(small.changes)}
    if run.steps:
        rows["loss"] = ", ".join(f"{record.loss:.4f}" for record in run.steps)
    if run.evaluations:
        rows["validation"] = ", ".join(f"{record.validation_loss:.4f}" for record in run.evaluations)
    if run.steps:
        rows["memory"] = f"{format_bytes(max(record.peak_bytes for record in run.steps))} a process"
    kept = {"kept": str(run.folder.path)} if run.has_failed else {}
    return {**rows, "not shown by it": _NOT_SHOWN, **kept}


def _in_short(run: SmallRun) -> str:
    did = [f"{STEPS} steps"]
    if run.evaluations:
        did.append("evaluated")
    did.append(f"saved, and resumed after step {STEPS // 2}" if run.saves else "nothing saved, as it asks")
    where = f"on {run.plan.layout.world_size} processes in {format_seconds(run.time_s)}"
    return f"the job works when it is small: {', '.join(did)}; {where}"


def _ranks(small: Plan, real: Plan) -> str:
    words = [
        f"{plan.layout.world_size} (dp {plan.layout.dp} x pp {plan.layout.pp} x tp {plan.layout.tp})"
        for plan in (small, real)
    ]
    return words[0] if words[0] == words[1] else f"{words[0]}, in the job {words[1]}"


def _alike(plan: Plan, changes: Sequence[Change]) -> str:
    """What the small plan has of the job's."""
    training, layout = plan.training, plan.layout
    words = {
        "model.family": plan.model.family,
        "training.precision": training.precision,
        "parallel.zero": f"zero {layout.zero}",
        "parallel.offload": f"offload {layout.offload}" * (layout.offload != "none"),
        "parallel.sequence_parallel": "sequence parallel" * layout.sequence_parallel,
        "training.recompute": f"recompute {layout.recompute}",
        "training.optimizer.name": training.optimizer.name,
        "training.schedule.name": training.schedule.name,
        "data.train": plan.data.source,
    }
    other = {change.path for change in changes}
    return ", ".join(word for path, word in words.items() if word and path not in other)


def _change_rows(changes: Sequence[Change]) -> Mapping[str, str]:
    """Changes in words: what is less of the same, and what is something else, with the reason."""
    less = [change_words(change) for change in changes if not change.why]
    other = [f"{change_words(change)} ({change.why})" for change in changes if change.why]
    rows = {"reduced": ", ".join(less), "replaced": "; ".join(other)}
    return {name: words for name, words in rows.items() if words}


def change_words(change: Change) -> str:
    """A change in short, without the sections that everyone knows.

    >>> change_words(Change("parallel.dp", 64, 2)), change_words(Change("checkpoint.every", "30m", 1))
    ('dp 64 -> 2', 'checkpoint.every 30m -> 1')
    """
    section, _, key = change.path.partition(".")
    name = key if section in ("model", "training", "parallel", "data") else change.path
    before, after = (_value_words(value) for value in (change.before, change.after))
    return f"{name} {before} -> {after}"


def _value_words(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else render.yaml_value(value)
