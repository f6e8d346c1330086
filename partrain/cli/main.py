"""The program `partrain`: how it starts and how it ends."""

from __future__ import annotations

import gc
import io
import sys

from partrain.errors import PartrainError


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
    except PartrainError as error:
        from partrain.cli import render

        render.report_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()
