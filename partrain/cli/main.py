"""The program `partrain`: how it starts and how it ends."""

from __future__ import annotations

import gc
import io
import sys


def run() -> None:
    """The program `partrain`: ends the process with the exit code of the command contract."""
    # Nearly all commands end within a second: collecting garbage while modules are imported, and once more
    # when the interpreter shuts down, is a quarter of that time and frees nothing. `launch` turns it on.
    gc.disable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from partrain.cli.app import app

        app(prog_name="partrain")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()
