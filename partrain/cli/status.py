"""`partrain status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from partrain.cli import render
from partrain.cli.options import AsJson, RunName, RunsFolder

if TYPE_CHECKING:
    from partrain.monitor.status import RunStatus


def status(run: RunName = None, *, runs_folder: RunsFolder = Path("runs"), as_json: AsJson = False) -> None:
    """Show how a run stands: its state, its last step, and why it failed if it did."""
    from partrain.monitor.status import read_status
    from partrain.run.runs import find_run, newest_run

    found = read_status(find_run(runs_folder, run) if run else newest_run(runs_folder))
    if as_json:
        render.say_json(_as_object(found))
    else:
        _show(found)


def _as_object(found: RunStatus) -> dict[str, object]:
    info = found.info
    return {
        "name": info.name,
        "path": str(info.path.resolve()),
        "state": info.state,
        "step": info.last_step,
        "steps": info.steps,
        "started": info.started,
        "left_s": found.left_s,
        "last": asdict(found.last) if found.last else None,
        "evaluation": asdict(found.evaluation) if found.evaluation else None,
        "outcome": asdict(found.outcome) if found.outcome else None,
        "damaged": list(found.damaged),
    }


def _show(found: RunStatus) -> None:
    import time

    from partrain.cli.outcomes import evaluated_words, show_outcome
    from partrain.units import format_bytes, format_count, format_seconds

    info, last = found.info, found.last
    rows = {
        "run": str(info.path.resolve()),
        "state": info.state,
        "step": f"{info.last_step} of {'?' if info.steps is None else info.steps}",
    }
    if info.started is not None:
        rows["started"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.started))
    if last is not None:
        rows["last step"] = (
            f"loss {last.loss:.4f}, {format_count(last.tokens_per_s)} tokens/s,"
            f" {format_seconds(last.step_s)}, {format_bytes(last.peak_bytes)}"
        )
    if found.evaluation is not None:
        rows["validation"] = f"{evaluated_words(found.evaluation)} at step {found.evaluation.step}"
    if found.left_s is not None:
        rows["time left"] = format_seconds(found.left_s)
    render.pairs(rows)
    if found.damaged:
        render.notes([f"cannot be read: {', '.join(found.damaged)}"])
    if found.outcome is not None:
        show_outcome(found.outcome, info.folder)
