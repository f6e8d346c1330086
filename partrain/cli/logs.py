"""`partrain logs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partrain.cli import render
from partrain.cli.options import RunName, RunsFolder

Rank = Annotated[int, typer.Option(min=0, help="Whose log.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines of its end.")]

_LONGEST_LINE_BYTES = 4096


def logs(
    run: RunName = None, *, rank: Rank = 0, lines: Lines = 50, runs_folder: RunsFolder = Path("runs")
) -> None:
    """Show the end of what a rank of a run printed."""
    from partrain.run.reading import read_tail
    from partrain.run.runs import RunChoiceError, find_run, newest_run

    info = find_run(runs_folder, run) if run else newest_run(runs_folder)
    path = info.folder.log(rank)
    if not path.is_file():
        raise RunChoiceError(f"rank {rank} of {info.name} has no log: {path}", hint="partrain logs --rank 0")
    text = read_tail(path, lines * _LONGEST_LINE_BYTES).decode(errors="replace")
    for line in text.splitlines()[-lines:]:
        render.say(line)
