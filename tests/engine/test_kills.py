"""Real runs whose processes are killed in the middle of a step: named, ended, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc"),
]

ROOT = Path(__file__).parents[2]
LIMIT_S = 15.0
JOB = """
version: 1
name: killed
model: {preset: tiny}
data: {train: builtin:python-source}
training: {sequence_length: 128, global_batch_size: 32, steps: 5000}
parallel: {pp: 2, tp: 2}
hardware: {node: cpu}
"""


def processes_of(folder: Path) -> dict[int, dict[str, str]]:
    """Process id -> environment of every process that works in `folder`: launcher, agent and ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                found[int(entry.name)] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        except OSError:
            continue
    return found


def rank_process(folder: Path, rank: int) -> int:
    return next(pid for pid, env in processes_of(folder).items() if env.get("RANK") == str(rank))


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A launch that has done three steps."""
    job, output = folder / "job.yaml", folder / "output.txt"
    job.write_text(JOB)
    with open(output, "w") as file:
        argv = [sys.executable, "-m", "partrain", "launch", str(job)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=file, stderr=file, text=True)
    try:
        metrics, limit = folder / "runs" / "killed" / "metrics.jsonl", time.monotonic() + 120
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < limit, output.read_text()
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def nothing_left(folder: Path, since: float) -> bool:
    """Whether every process of the run ends within the limit."""
    while processes_of(folder):
        if time.monotonic() - since > LIMIT_S:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("rank", range(4))
def test_a_killed_rank_is_named_and_the_run_ends(rank: int, tmp_path: Path) -> None:
    with running(tmp_path) as launch:
        killed = time.monotonic()
        os.kill(rank_process(tmp_path, rank), signal.SIGKILL)
        assert launch.wait(timeout=LIMIT_S) == 5
        assert nothing_left(tmp_path, killed)
    stage, shard = divmod(rank, 2)
    wanted = f"rank {rank} (dp 0, pp {stage}, tp {shard}) was killed by signal 9 (SIGKILL)"
    assert wanted in (tmp_path / "output.txt").read_text()


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with running(tmp_path) as launch:
        killed = time.monotonic()
        launch.kill()
        assert nothing_left(tmp_path, killed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_the_run(number: int, code: int, tmp_path: Path) -> None:
    with running(tmp_path) as launch:
        sent = time.monotonic()
        launch.send_signal(number)
        assert launch.wait(timeout=LIMIT_S) == code
        assert nothing_left(tmp_path, sent)
