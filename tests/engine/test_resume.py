"""Real runs that are killed and stopped: the next launch goes on, and comes to the same end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.engine.test_kills import ROOT, processes_of

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc"),
]

STEPS = 36
JOB = f"""
version: 1
name: resumed
model: {{preset: tiny}}
data: {{train: synthetic}}
training: {{sequence_length: 32, global_batch_size: 8, steps: {STEPS}}}
parallel: {{pp: 2}}
hardware: {{node: cpu}}
checkpoint: {{every: 3, keep: 2}}
"""
EXACT = ("step", "loss", "lr", "grad_norm", "tokens")


class Runs:
    """Launches of one job in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "runs" / "resumed"
        folder.mkdir(exist_ok=True)
        (folder / "job.yaml").write_text(JOB)

    def start(self, *options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "partrain", "launch", "job.yaml", *options]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with open(self.folder / "output.txt", "w") as file:
            return subprocess.Popen(argv, cwd=self.folder, env=env, stdout=file, stderr=file, text=True)

    def to_the_end(self, *options: str) -> str:
        """What a launch that is left alone prints."""
        assert self.start(*options).wait(timeout=120) == 0, self.output()
        return self.output()

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def records(self) -> list[list[Any]]:
        """What is exact of each record."""
        try:
            lines = (self.run / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [[record[name] for name in EXACT] for record in whole]

    def wait_for(self, step: int, launch: subprocess.Popen[str]) -> None:
        """Until a step of this launch is recorded."""
        limit = time.monotonic() + 120
        while not any(record[0] == step for record in self.records()[-2:]):
            assert launch.poll() is None, self.output()
            assert time.monotonic() < limit, self.output()
            time.sleep(0.01)

    def kill(self, *, launcher_too: bool) -> None:
        """kill -9 of all ranks, or of all there is."""
        for pid, env in processes_of(self.folder).items():
            if launcher_too or "RANK" in env:
                os.kill(pid, signal.SIGKILL)
        limit = time.monotonic() + 15
        while processes_of(self.folder):
            assert time.monotonic() < limit
            time.sleep(0.05)


def undisturbed(folder: Path) -> list[list[Any]]:
    """Records of a run that nothing happens to."""
    runs = Runs(folder)
    runs.to_the_end()
    return runs.records()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    return undisturbed(tmp_path_factory.mktemp("uninterrupted"))


def test_a_run_that_is_killed_and_stopped_comes_to_the_same_end(
    uninterrupted: list[list[Any]], tmp_path: Path
) -> None:
    runs, chance = Runs(tmp_path / "killed"), random.Random(5)
    for step, launcher_too in ((5, False), (11, True), (15, False)):
        launch = runs.start()
        runs.wait_for(step, launch)
        time.sleep(chance.uniform(0, 0.4))
        runs.kill(launcher_too=launcher_too)
        assert launch.wait() == (-signal.SIGKILL if launcher_too else 5)
    launch = runs.start()
    runs.wait_for(23, launch)
    launch.send_signal(signal.SIGTERM)
    assert launch.wait(timeout=30) == 143
    stopped = runs.records()[-1][0]
    assert f"ended by SIGTERM after step {stopped} of {STEPS}; saved" in runs.output()
    # Under another layout now, which the job says and `--resume` confirms.
    changed = ("--set", "parallel.pp=1", "--set", "parallel.tp=2", "--set", "parallel.zero=3")
    refused = runs.start(*changed)
    assert refused.wait(timeout=60) == 2
    assert "layout.pp: 2 -> 1" in runs.output()
    assert "--resume" in runs.output()
    output = runs.to_the_end(*changed, "--resume")
    assert f"goes on from step-{stopped:08d}" in output

    records = runs.records()
    assert [record[0] for record in records] == list(range(1, STEPS + 1))
    assert records[:stopped] == uninterrupted[:stopped]
    farthest = max(abs(a[1] - b[1]) for a, b in zip(records, uninterrupted, strict=True))
    assert farthest <= 1e-5
    assert [path.name for path in sorted((runs.run / "checkpoints").glob("step-*"))] == [
        "step-00000033",
        "step-00000036",
    ]
    board = EventAccumulator(str(runs.run / "tensorboard" / "resumed"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss/train")] == list(range(1, STEPS + 1))
