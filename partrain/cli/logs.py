"""`partrain logs`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import RunName, RunsFolder

if TYPE_CHECKING:
    from partrain.run.runs import RunInfo

Rank = Annotated[int, typer.Option(min=0, help="Whose log.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines of its end.")]

_LONGEST_LINE_BYTES = 4096


def logs(
    run: RunName = None, *, rank: Rank = 0, lines: Lines = 50, runs_folder: RunsFolder = Path("runs")
) -> None:
    """Show the end of what a rank of a run printed."""
    from partrain.run.reading import read_tail
    from partrain.run.runs import find_run, newest_run

    info = find_run(runs_folder, run) if run else newest_run(runs_folder)
    _check_log(info, rank)
    text = read_tail(info.folder.log(rank), lines * _LONGEST_LINE_BYTES).decode(errors="replace")
    for line in text.splitlines()[-lines:]:
        render.say(line)


def _check_log(info: RunInfo, rank: int) -> None:
    """Raises RunChoiceError where the log cannot be read: missing, no rights, a link or a pipe."""
    from partrain.run.reading import open_regular
    from partrain.run.runs import RunChoiceError

    path, first = info.folder.log(rank), info.folder.log(0)
    try:
        os.close(open_regular(path))
    except FileNotFoundError:
        hint = "partrain logs --rank 0" if rank and os.path.exists(first) else ""
        raise RunChoiceError(f"rank {rank} of {info.name} has no log: {path}", hint=hint) from None
    except OSError as error:
        why = "it is a link" if os.path.islink(path) else error.strerror or "it is not a regular file"
        raise RunChoiceError(f"the log of rank {rank} of {info.name} is not read: {path}: {why}") from None
