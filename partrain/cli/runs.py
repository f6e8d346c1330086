"""`partrain runs`."""

from __future__ import annotations

import time
from pathlib import Path

from partrain.cli import render
from partrain.cli.options import AsJson, RunsFolder


def runs(runs_folder: RunsFolder = Path("runs"), *, as_json: AsJson = False) -> None:
    """List the runs of a folder, the newest first."""
    from partrain.run.runs import list_runs

    found = list_runs(runs_folder)
    if as_json:
        keys = ("name", "state", "last_step", "steps", "last_loss", "started")
        listed = [
            {"path": str(info.path.resolve()), **{key: getattr(info, key) for key in keys}} for info in found
        ]
        render.say_json({"runs": listed})
        return
    if not found:
        render.say(f"There are no runs in {runs_folder}. `partrain launch JOB` starts one.")
        return
    rows = [
        (
            info.name,
            info.state,
            f"{info.last_step}/{'?' if info.steps is None else info.steps}",
            "" if info.last_loss is None else f"{info.last_loss:.4f}",
            "" if info.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(info.started)),
        )
        for info in found
    ]
    render.table(("run", "state", "step", "loss", "started"), rows, right=("step", "loss"))
