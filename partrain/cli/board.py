"""`partrain board`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from partrain.cli import render
from partrain.cli.options import RunName, RunsFolder

Port = Annotated[
    int, typer.Option(min=1, max=65535, help="Port on this machine; the next free one if taken.")
]


def board(run: RunName = None, *, port: Port = 6006, runs_folder: RunsFolder = Path("runs")) -> None:
    """Show a run's curves in TensorBoard, on this machine alone; Ctrl-C ends it.

    Over ssh it also prints the tunnel to type on the machine with the browser.
    """
    from partrain.monitor.board import end_board, free_port, start_board, tunnel, wait_for_answer
    from partrain.run.runs import find_run, newest_run

    info = find_run(runs_folder, run) if run else newest_run(runs_folder)
    folder = info.folder
    if not info.last_step:
        render.say(f"no step of {info.name} is recorded yet: the board stays empty until one is")
    chosen = free_port(port)
    if chosen != port:
        render.say(f"port {port} is taken: using {chosen}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="partrain-board-") as scratch:
        log = Path(scratch, "tensorboard.log")
        process = start_board(folder.tensorboard, port=chosen, log=log)
        try:
            address = wait_for_answer(process, port=chosen, log=log)
            through = tunnel(chosen, os.environ)
            rows = {"run": str(folder.path.resolve()), "address": address}
            render.pairs(
                {**rows, "tunnel": f"{through}    (type it where the browser is)"} if through else rows
            )
            render.say("Ctrl-C ends it.")
            process.wait()
        finally:
            end_board(process)
