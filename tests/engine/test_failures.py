"""Trainings that go wrong by themselves: said in that step, on every rank, with exit code 5."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_kills import ROOT

pytestmark = pytest.mark.torch

JOB = """
version: 1
name: spoilt
model: {preset: tiny}
data: {train: synthetic}
training: {sequence_length: 64, global_batch_size: 8, steps: 5, optimizer: {lr: 1.0e+30}}
hardware: {node: cpu}
"""


@pytest.mark.parametrize(
    "options",
    [
        ("parallel.zero=0",),
        ("parallel.pp=2", "parallel.tp=2"),
        ("training.precision=bf16", "parallel.dp=2"),
        ("parallel.zero=2", "parallel.tp=2", "training.precision=bf16"),
        ("parallel.zero=3", "parallel.dp=2", "parallel.offload=parameters"),
    ],
    ids=lambda options: " ".join(options),
)
def test_a_gradient_that_is_not_finite_ends_the_run_in_its_step(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    sets = [word for option in options for word in ("--set", option)]
    launched = subprocess.run(
        [sys.executable, "-m", "partrain", "launch", "job.yaml", *sets],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert launched.returncode == 5, launched.stdout + launched.stderr
    assert "step 2: the gradient is not finite" in launched.stdout + launched.stderr
    assert (tmp_path / "runs" / "spoilt" / "metrics.jsonl").read_text().count("\n") == 1
