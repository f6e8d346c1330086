"""`partrain stop`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, RunName, RunsFolder

if TYPE_CHECKING:
    from partrain.run.runs import RunInfo

_POLL_S = 0.2


def stop(run: RunName = None, *, runs_folder: RunsFolder = Path("runs"), as_json: AsJson = False) -> None:
    """Save a run that goes on and end it, wherever it runs.

    It ends after the step that it is in. Launched again, it goes on from there.
    """
    from dataclasses import asdict

    from partrain.cli.outcomes import show_outcome
    from partrain.run.runs import RunChoiceError, find_run, newest_run, read_outcome

    info = find_run(runs_folder, run) if run else newest_run(runs_folder)
    if info.state not in ("running", "unknown"):
        raise RunChoiceError(f"{info.name} does not run: it is {info.state}", hint="partrain runs lists all")
    try:
        info.folder.stop.touch()
    except OSError as error:
        raise RunChoiceError(f"{info.folder.stop}: {error.strerror or error}") from error
    if not as_json:
        render.say(f"{info.name} is told to stop; it saves and ends after the step that it is in")
    _wait(info)
    outcome = read_outcome(info.folder)
    if as_json:
        render.say_json({"run": str(info.path.resolve()), "outcome": asdict(outcome) if outcome else None})
    elif outcome is not None:
        show_outcome(outcome, info.folder)
    if outcome is None:
        raise typer.Exit(RunChoiceError.exit_code)


def _wait(info: RunInfo) -> None:
    """Until the run is over."""
    from partrain.run.runs import state_of

    while state_of(info.folder) in ("running", "unknown"):
        time.sleep(_POLL_S)
