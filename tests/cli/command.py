"""Running the command: in this process where only its words count, as a process where its surroundings do."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from partrain.cli.main import run

ROOT = Path(__file__).resolve().parents[2]

SHIPPED = sorted([*ROOT.glob("jobs/*.yaml"), *ROOT.glob("templates/*.yaml")])
"""Every job that comes with partrain."""

JOB = """\
version: 1
name: small
model: {preset: tiny}
data: {train: synthetic}
training: {sequence_length: 32, global_batch_size: 8, steps: 3}
parallel: {pp: 2}
hardware: {node: cpu}
"""


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    code: int
    out: str
    err: str


def partrain(*arguments: str) -> Ended:
    """`partrain` with these arguments, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", ["partrain", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            run()
            code: object = 0
        except SystemExit as end:
            code = end.code
        finally:
            gc.unfreeze()
            gc.enable()
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), err.getvalue())


def child(*arguments: str, cwd: Path, environ: Mapping[str, str] | None = None) -> Ended:
    """`python -m partrain` with these arguments, as a process."""
    found = subprocess.run(
        (sys.executable, "-m", "partrain", *arguments),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(found.returncode, found.stdout, found.stderr)


def job_file(folder: Path, text: str = JOB) -> Path:
    """A job file in `folder`."""
    path = folder / "job.yaml"
    path.write_text(text)
    return path
