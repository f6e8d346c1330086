"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Replace a value of the job; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="The run: its folder or name; left out, the newest.", show_default=False
    ),
]
RunsFolder = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs.")]
