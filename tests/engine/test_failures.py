"""Trainings that go wrong by themselves: said in that step, on every rank, with exit code 5."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from partrain.checkpoint.shelf import read_checkpoint
from partrain.run.folder import RunFolder
from partrain.run.reading import read_object
from partrain.run.records import outcome_from
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
NAMED = re.compile(
    r"step 2: the (loss|gradient) is not finite, first on rank \d \(dp \d, pp \d, tp \d\), "
    r"layer \d \(block \d\), "
    r"the (input|output|gradient) of .*: \d+ of \d+ values are (nan|inf|nan or inf)"
)


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
    folder = RunFolder(tmp_path / "runs" / "spoilt")
    assert folder.metrics.read_text().count("\n") == 1
    # What the failed step found is saved: with another learning rate the run can go on from there.
    assert read_checkpoint(folder.checkpoints / "step-00000001").samples == 8
    outcome = outcome_from(read_object(folder.outcome))
    assert (outcome.state, outcome.exit_code, outcome.failure and outcome.failure.step) == ("failed", 5, 2)
    assert NAMED.fullmatch(outcome.message), outcome.message
    assert outcome.message in launched.stdout
    assert "the training failed: ending all ranks" in launched.stdout
    assert "fix: a lower training.optimizer.lr" in launched.stdout


def refuse_memory_beyond(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def test_a_rank_that_is_refused_memory_says_where_and_what_to_change(tmp_path: Path) -> None:
    """Its tensors take several times the 3 GiB that the system gives it."""
    sizes = ("sequence_length", "global_batch_size", "micro_batch_size")
    changes = (*(f"training.{size}=512" for size in sizes), "parallel.zero=0", "monitor.track_memory=true")
    (tmp_path / "job.yaml").write_text(JOB)
    launched = subprocess.run(
        [sys.executable, "-m", "partrain", "launch", "job.yaml", "--over-budget"]
        + [word for change in changes for word in ("--set", change)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=partial(refuse_memory_beyond, 3 * 2**30),
    )
    assert launched.returncode == 5, launched.stdout + launched.stderr
    failure = outcome_from(read_object(RunFolder(tmp_path / "runs" / "spoilt").outcome)).failure
    assert failure is not None
    assert re.fullmatch(
        r"out of memory in the forward pass on stage 0: [\d.]+ .iB was refused beside [\d.]+ .iB that "
        r"tensors held; [\d.]+ GiB were estimated for that moment; nothing has grown past the estimate: .*",
        failure.message,
    )
    assert "DefaultCPUAllocator" in failure.traceback
