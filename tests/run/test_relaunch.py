"""A job that is launched again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from partrain.plan.plan import Plan
from partrain.run.attempts import first_start, num_failures, past_attempts
from partrain.run.folder import write_json
from partrain.run.launcher import Launcher, read_launcher
from partrain.run.process import host_mark
from partrain.run.records import Outcome
from partrain.run.relaunch import relaunch
from partrain.run.runs import RunChoiceError, state_of
from tests.run.plans import a_plan


def ended(folder, state="failed"):
    write_json(folder.outcome, asdict(Outcome(state, 0, "over", 1.0)))


def lost(folder):
    write_json(folder.launch, asdict(Launcher(os.getpid(), "another start", *host_mark(), started=1.0)))


def launched(run_dir, plan, text="", **options):
    """Folder of a launch."""
    return relaunch(run_dir, plan, text, **{"new": False, **options}).folder


def test_a_first_launch_writes_job_and_plan_down(tmp_path):
    folder = launched(tmp_path, a_plan(), "name: demo\n")
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


def test_a_run_that_is_done_is_said_to_be_and_kept(tmp_path):
    folder = launched(tmp_path, a_plan())
    folder.agent_log.touch()
    ended(folder, "done")
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(RunChoiceError, match="demo is done"):
        relaunch(tmp_path, a_plan(), "", new=False)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("end", [ended, lambda folder: ended(folder, "interrupted"), lost])
def test_a_run_that_stopped_goes_on_with_the_plan_that_it_has(tmp_path, end):
    folder = launched(tmp_path, a_plan(notes=("as it was planned",)))
    folder.agent_log.write_text("of the first launch")
    folder.exported.mkdir()
    end(folder)
    run = relaunch(tmp_path, a_plan(partrain="0.2.0"), "other words", new=False)
    assert (run.goes_on, run.changes, run.folder.path) == (True, (), folder.path)
    assert run.plan.to_json() == folder.plan.read_text() == a_plan(notes=("as it was planned",)).to_json()
    assert state_of(folder) == "running"
    assert (folder.attempts / "1" / "logs" / "agent.log").read_text() == "of the first launch"
    assert (folder.attempts / "1" / "hf").is_dir()
    assert not folder.exported.exists()
    assert not list(folder.logs.iterdir())
    assert folder.job.read_text() == ""


def test_what_every_launch_left_is_kept_apart(tmp_path):
    folder = launched(tmp_path, a_plan())
    for state in ("failed", "interrupted", "failed"):
        ended(folder, state)
        launched(tmp_path, a_plan())
    assert [path.name for path in past_attempts(folder)] == ["1", "2", "3"]
    assert num_failures(folder) == 2
    assert first_start(folder) < read_launcher(folder).started


def test_a_launch_that_ended_before_it_started_a_rank_can_be_repeated(tmp_path):
    folder = launched(tmp_path, a_plan())
    ended(folder)
    lost(launched(tmp_path, a_plan()))
    assert launched(tmp_path, a_plan()).path == folder.path


def test_resume_takes_a_changed_job(tmp_path):
    folder = launched(tmp_path, a_plan(), "steps: 10")
    ended(folder, "done")
    run = relaunch(tmp_path, a_plan(steps=20), "steps: 20", new=False, resume=True)
    assert (run.folder.path, run.changes) == (folder.path, ("training.steps: 10 -> 20",))
    assert Plan.from_json(folder.plan.read_text()) == a_plan(steps=20) == run.plan
    assert folder.job.read_text() == "steps: 20"
    assert (folder.attempts / "1" / "job.yaml").read_text() == "steps: 10"
    assert Plan.from_json((folder.attempts / "1" / "plan.json").read_text()) == a_plan()


def test_there_is_nothing_to_resume_without_a_run(tmp_path):
    with pytest.raises(RunChoiceError, match="no run"):
        relaunch(tmp_path, a_plan(), "", new=False, resume=True)


def test_of_two_launches_at_once_one_goes_on_with_the_run(tmp_path):
    """Each in a process of its own, started as close together as can be."""
    folder = launched(tmp_path, a_plan())
    ended(folder)
    argv = [sys.executable, "-m", "tests.run.relauncher", str(tmp_path)]
    both = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = []
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        said.append(process.stdout.readline())
    for process in both:
        process.communicate("end\n")
    assert sorted(said) == ["refused\n", "taken\n"]


def test_a_changed_job_says_what_changed(tmp_path):
    ended(launched(tmp_path, a_plan()))
    with pytest.raises(RunChoiceError) as caught:
        relaunch(tmp_path, a_plan(steps=20, tp=1), "", new=False)
    assert "      training.steps: 10 -> 20\n      layout.tp: 2 -> 1" in str(caught.value)


def test_another_version_of_partrain_is_no_change(tmp_path):
    ended(launched(tmp_path, a_plan()), "done")
    with pytest.raises(RunChoiceError, match="demo is done"):
        relaunch(tmp_path, a_plan(partrain="0.2.0", notes=("other words",)), "", new=False)


def test_new_starts_another_run_beside_the_first(tmp_path):
    folders = [launched(tmp_path, a_plan(), new=True) for _ in range(3)]
    assert [folder.path.name for folder in folders] == ["demo", "demo-2", "demo-3"]


def test_a_job_whose_name_looks_like_a_second_run_gets_a_run_of_its_own(tmp_path):
    relaunch(tmp_path, a_plan(), "", new=True)
    relaunch(tmp_path, a_plan(), "", new=True)
    folder = launched(tmp_path, a_plan(name="demo-2"))
    assert folder.path.name == "demo-2-2"


def test_a_plan_that_cannot_be_read_is_not_overwritten(tmp_path):
    folder = launched(tmp_path, a_plan())
    ended(folder)
    folder.plan.write_text("{")
    with pytest.raises(RunChoiceError, match="cannot be read"):
        relaunch(tmp_path, a_plan(), "", new=False)


def test_a_run_that_was_never_begun_does_not_hold_up_the_next(tmp_path):
    lost(launched(tmp_path, a_plan()))  # its launcher ended before it started an agent
    assert launched(tmp_path, a_plan()).path.name == "demo-2"


def test_a_changed_secret_is_not_shown(tmp_path):
    ended(launched(tmp_path, a_plan(env={"TOKEN": "before-0451"})))
    with pytest.raises(RunChoiceError, match=r"env\.TOKEN: \*\*\* -> \*\*\*") as caught:
        relaunch(tmp_path, a_plan(env={"TOKEN": "after-0451"}), "", new=False)
    assert "0451" not in str(caught.value)
