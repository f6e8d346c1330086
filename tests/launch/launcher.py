"""Supervises stand-in ranks and prints the events: arguments are the run folder and each rank's behaviour."""

from __future__ import annotations

import sys
from pathlib import Path

from partrain.launch.events import Event, to_line
from partrain.launch.supervise import supervise
from partrain.run.folder import RunFolder
from tests.launch.launched import script_of


def show(event: Event) -> None:
    sys.stdout.buffer.write(to_line(event))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    sys.exit(supervise(script_of(folder, sys.argv[2:]), folder, on_event=show).exit_code)
