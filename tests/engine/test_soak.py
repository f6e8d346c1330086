"""What takes long: many kills at any moment, and every layout for more steps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.plans import covering_cases
from tests.engine.processes import run_cases
from tests.engine.test_kills import JOB, LIMIT_S, ROOT, nothing_left, processes_of
from tests.engine.test_layouts import FIRST_LOSS, LATER_LOSS, NORM, deviations
from tests.engine.test_resume import STEPS, Runs, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.soak]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("seed", range(30))
def test_a_kill_at_any_moment_leaves_nothing(seed: int, tmp_path: Path) -> None:
    """Any process of the launch, from its first second to well into the training."""
    chance = random.Random(seed)
    (tmp_path / "job.yaml").write_text(JOB)
    argv = [sys.executable, "-m", "partrain", "launch", "job.yaml"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(tmp_path / "output.txt", "w") as file:
        launch = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=file, stderr=file)
    time.sleep(chance.uniform(0.3, 25))
    victim = chance.choice(sorted(processes_of(tmp_path)))
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    code = launch.wait(timeout=LIMIT_S)
    assert nothing_left(tmp_path, killed)
    expected = (
        {-signal.SIGKILL} if victim == launch.pid else {4, 5}
    )  # 4: the agent, before it had started any
    assert code in expected, (tmp_path / "output.txt").read_text()


def test_every_layout_equals_the_plain_loop_over_ten_steps(tmp_path: Path) -> None:
    cases = [replace(case, steps=10) for case in covering_cases(8)]
    for case, found in run_cases(cases, tmp_path).items():
        first, norm, later = deviations(case, found)
        assert first <= FIRST_LOSS, case
        assert norm <= NORM, case
        assert later <= LATER_LOSS, case


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    return undisturbed(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("seed", range(30))
def test_a_run_killed_around_its_saves_comes_to_the_same_end(
    seed: int, uninterrupted: list[list[Any]], tmp_path: Path
) -> None:
    """kill -9 of all ranks, or of the launcher too, at any moment after a step near a save."""
    runs, chance = Runs(tmp_path), random.Random(seed)
    launch = runs.start()
    runs.wait_for(chance.choice((2, 3, 5, 6, 8, 9, 30, 33)), launch)
    time.sleep(chance.uniform(0, 0.5))
    runs.kill(launcher_too=chance.random() < 0.5)
    launch.wait()
    if len(runs.records()) < STEPS:
        assert "done: all" in runs.to_the_end()
    assert runs.records() == uninterrupted
