"""`checkpoint.export: hf` where it fails, without torch: the run stays done, and how to repeat it is told."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from partrain.checkpoint.size import expected_bytes, exported_bytes
from partrain.cli.exports import exported_at_end, signals_as_faults
from partrain.cli.outcomes import show_failed_export, show_next, show_summary
from partrain.cli.planning import plan_job
from partrain.errors import RunError
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.run.records import Outcome
from tests.cli.command import JOB, job_file
from tests.cli.run_folders import run_folder
from tests.cli.test_checkpoint import as_saved

DONE = Outcome("done", 0, "3 steps", time.time())
WANTED = f"{JOB}checkpoint: {{export: hf}}\n"


def ended(folder: Path, *steps: int, job: str = WANTED) -> tuple[Plan, RunFolder]:
    """A run with the checkpoints of `steps`, whose files are full of holes."""
    plan, run = plan_job(job_file(folder, job), None).plan, RunFolder(run_folder(folder, "small"))
    for step in steps:
        as_saved(run.checkpoints, plan, step)
    return plan, run


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((), "there is no whole checkpoint of step 3"),
        ((1, 2), "there is no whole checkpoint of step 3, the newest is of step 2"),
        ((2, 3), "step-00000003 is damaged"),
    ],
    ids=str,
)
def test_an_export_that_fails_is_told_with_the_command_that_repeats_it(
    tmp_path: Path, steps: tuple[int, ...], said: str, capsys: pytest.CaptureFixture[str]
):
    plan, run = ended(tmp_path, *steps)
    found = exported_at_end(plan, run, DONE)
    assert found is not None
    assert said in found.fault
    assert not run.exported.exists()
    notice = json.loads(run.notices.read_text())
    assert notice["is_grave"]
    assert said in notice["message"]
    again = f"partrain checkpoint export {run.path} {run.exported}"
    assert found.as_object()["command"] == again
    show_summary(None, run, found)
    show_failed_export(found)
    show_next(run, DONE, ("launch", "job.yaml"), found)
    out = capsys.readouterr().out
    assert f"failed: the export: {found.fault}\n" in out
    assert again in out
    assert "exported" not in out


@pytest.mark.parametrize(("job", "state"), [(JOB, "done"), (WANTED, "failed"), (WANTED, "interrupted")])
def test_nothing_is_exported_unless_the_job_wants_it_and_the_run_is_done(
    tmp_path: Path, job: str, state: str
):
    plan, run = ended(tmp_path, 3, job=job)
    assert exported_at_end(plan, run, Outcome(state, 5 * (state != "done"), "", 0.0)) is None  # type: ignore[arg-type]
    assert not run.notices.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_that_is_interrupted_has_failed(number: signal.Signals):
    before = signal.getsignal(number)
    with pytest.raises(RunError, match=f"interrupted by {number.name}"), signals_as_faults():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_room_is_wanted_for_the_export_too(tmp_path: Path):
    plan, _ = ended(tmp_path, job=WANTED.replace("steps: 3", "steps: 3, precision: bf16"))
    assert (expected_bytes(plan), exported_bytes(plan)) == (12 * plan.parameters, 2 * plan.parameters)
    assert exported_bytes(plan_job(job_file(tmp_path, JOB), None).plan) == 0
