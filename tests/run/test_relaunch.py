"""A job that is launched again."""

from __future__ import annotations

import os
from dataclasses import asdict

import pytest

from partrain.run.folder import write_json
from partrain.run.launcher import Launcher
from partrain.run.process import host_mark
from partrain.run.records import Outcome
from partrain.run.relaunch import relaunch
from partrain.run.runs import RunChoiceError, state_of
from tests.run.plans import a_plan


def ended(folder, state="failed"):
    write_json(folder.outcome, asdict(Outcome(state, 0, "over", 1.0)))


def lost(folder):
    write_json(folder.launch, asdict(Launcher(os.getpid(), "another start", *host_mark(), started=1.0)))


def test_a_first_launch_writes_job_and_plan_down(tmp_path):
    folder = relaunch(tmp_path, a_plan(), "name: demo\n", new=False)
    assert folder.path == tmp_path / "demo"
    assert folder.job.read_text() == "name: demo\n"
    assert folder.plan.read_text() == a_plan().to_json()
    assert state_of(folder) == "running"


def test_a_running_job_is_not_started_twice(tmp_path):
    relaunch(tmp_path, a_plan(), "", new=False)
    with pytest.raises(
        RunChoiceError, match=f"demo is running: .*launched by process {os.getpid()}"
    ) as caught:
        relaunch(tmp_path, a_plan(), "", new=False)
    assert caught.value.exit_code == 2
    assert "--new" in caught.value.hint


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda folder: ended(folder, "done"), "demo is done"),
        (ended, "this version keeps no checkpoints to go on from"),
        (lost, r"stopped: .*\(lost, step 0 of 10\)"),
    ],
)
def test_a_run_that_is_over_is_said_to_be_and_kept(tmp_path, end, said):
    folder = relaunch(tmp_path, a_plan(), "", new=False)
    folder.agent_log.touch()
    end(folder)
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(RunChoiceError, match=said):
        relaunch(tmp_path, a_plan(), "", new=False)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_a_changed_job_says_what_changed(tmp_path):
    ended(relaunch(tmp_path, a_plan(), "", new=False))
    with pytest.raises(RunChoiceError) as caught:
        relaunch(tmp_path, a_plan(steps=20, tp=1), "", new=False)
    assert "      training.steps: 10 -> 20\n      layout.tp: 2 -> 1" in str(caught.value)


def test_another_version_of_partrain_is_no_change(tmp_path):
    ended(relaunch(tmp_path, a_plan(), "", new=False), "done")
    with pytest.raises(RunChoiceError, match="demo is done"):
        relaunch(tmp_path, a_plan(partrain="0.2.0", notes=("other words",)), "", new=False)


def test_new_starts_another_run_beside_the_first(tmp_path):
    folders = [relaunch(tmp_path, a_plan(), "", new=True) for _ in range(3)]
    assert [folder.path.name for folder in folders] == ["demo", "demo-2", "demo-3"]


def test_a_job_whose_name_looks_like_a_second_run_gets_a_run_of_its_own(tmp_path):
    relaunch(tmp_path, a_plan(), "", new=True)
    relaunch(tmp_path, a_plan(), "", new=True)
    folder = relaunch(tmp_path, a_plan(name="demo-2"), "", new=False)
    assert folder.path.name == "demo-2-2"


def test_a_plan_that_cannot_be_read_is_not_overwritten(tmp_path):
    folder = relaunch(tmp_path, a_plan(), "", new=False)
    ended(folder)
    folder.plan.write_text("{")
    with pytest.raises(RunChoiceError, match="cannot be read"):
        relaunch(tmp_path, a_plan(), "", new=False)


def test_a_run_that_was_never_begun_does_not_hold_up_the_next(tmp_path):
    lost(relaunch(tmp_path, a_plan(), "", new=False))  # its launcher ended before it started an agent
    assert relaunch(tmp_path, a_plan(), "", new=False).path.name == "demo-2"


def test_a_changed_secret_is_not_shown(tmp_path):
    ended(relaunch(tmp_path, a_plan(env={"TOKEN": "before-0451"}), "", new=False))
    with pytest.raises(RunChoiceError, match=r"env\.TOKEN: \*\*\* -> \*\*\*") as caught:
        relaunch(tmp_path, a_plan(env={"TOKEN": "after-0451"}), "", new=False)
    assert "0451" not in str(caught.value)
