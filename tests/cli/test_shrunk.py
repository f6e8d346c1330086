"""`partrain rehearse JOB --shrink`: what is refused, what is told, what is left behind."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from partrain.cli.shrunk import SmallRun
from partrain.run.folder import RunFolder
from partrain.run.records import EvaluationRecord, Outcome, StepRecord
from tests.cli.command import JOB, ROOT, Ended, child, job_file, partrain
from tests.cli.test_launch import NO_TORCH
from tests.plan.jobs import planned


def rehearsed(folder: Path, *options: str, **environ: str) -> Ended:
    """The command as a process; temporary folders are made in `folder`/tmp."""
    (folder / "tmp").mkdir()
    environ = {"TMPDIR": str(folder / "tmp"), **environ}
    return child("rehearse", "job.yaml", "--shrink", *options, cwd=folder, environ=environ)


def test_a_wrong_job_is_refused_with_its_faults(tmp_path: Path) -> None:
    shown = partrain("rehearse", str(job_file(tmp_path, JOB.replace("pp: 2", "pp: 20"))), "--shrink")
    assert shown.code == 2
    assert "job.yaml:6:16: parallel.pp: pp=20 is more stages" in shown.err


def test_without_torch_it_names_the_extra_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    job_file(tmp_path)
    shown = rehearsed(tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert shown.code == 4
    assert "pip install 'partrain[train]'" in shown.err
    assert list((tmp_path / "tmp").iterdir()) == []


def test_data_that_are_damaged_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "web.bin").write_bytes(b"123")
    text = JOB.replace("train: synthetic", "train: web.bin")
    job_file(tmp_path, text)
    shown = rehearsed(tmp_path)
    assert shown.code == 2
    assert "web.json" in shown.err


RECORD = StepRecord(
    step=1, loss=5.0, lr=0.1, grad_norm=1.0, step_s=0.1, tokens=1, tokens_per_s=1.0, flops=1.0, mfu=None,
    peak_bytes=1, time=1.0,
)  # fmt: skip
EVALUATED = EvaluationRecord(2, 5.0, 150.0, num_sequences=8, evaluation_s=0.1, time=1.0)
DONE = SmallRun(
    plan=planned(),
    folder=RunFolder(Path("runs/demo")),
    outcome=Outcome("done", 0, "all 4 steps", time.time()),
    resumed=True,
    steps=tuple(replace(RECORD, step=step) for step in (1, 2, 3, 4)),
    evaluations=(EVALUATED,),
    time_s=1.0,
)


def test_what_went_as_it_should_has_no_fault() -> None:
    assert (DONE.fault, DONE.exit_code) == ("", 0)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (replace(DONE, resumed=False), "began anew"),
        (replace(DONE, steps=DONE.steps[2:]), "steps 3, 4 are recorded"),
        (replace(DONE, steps=(*DONE.steps[:3], replace(RECORD, step=4, loss=math.nan))), "loss of step 4"),
        (replace(DONE, evaluations=(replace(EVALUATED, validation_loss=math.inf),)), "loss after step 2"),
    ],
)
def test_ranks_that_ended_well_may_have_done_wrong(run: SmallRun, said: str) -> None:
    assert said in run.fault
    assert run.exit_code == 5


SMALL = """\
version: 1
name: whole
model: {preset: llama-3.1-70b}
data: {train: /far/away/web, validation: near.bin}
training: {sequence_length: 8192, global_batch_size: 512, steps: 1000, precision: fp16, recompute: full}
parallel: {dp: 32, pp: 2, tp: 1}
hardware: {nodes: 8, node: dgx-h100}
"""


@pytest.mark.torch
def test_a_large_job_is_trained_saved_and_resumed_by_four_processes(tmp_path: Path) -> None:
    (tmp_path / "near.bin").write_bytes(bytes(2 * 9000))
    header = {"format": "partrain-tokens", "version": 1, "dtype": "uint16"}
    header |= {"num_tokens": 9000, "vocab_size": 300}
    (tmp_path / "near.json").write_text(json.dumps(header))
    job_file(tmp_path, SMALL)
    shown = rehearsed(tmp_path, "--json", "--set", "parallel.dp=2")
    document = json.loads(shown.out)
    assert (shown.code, document["ok"]) == (0, True), shown.out
    assert (document["ranks"], document["layout"]["dp"], document["layout"]["pp"]) == (4, 2, 2)
    assert len(document["losses"]) == 4
    # Random tokens and weights of which next to nothing is learned: the logarithm of 300 tokens.
    assert all(abs(loss - math.log(300)) < 0.5 for loss in document["losses"])
    assert len(document["validation_losses"]) == 2
    assert document["resumed"]
    changed = {change["path"]: (change["from"], change["to"]) for change in document["changes"]}
    assert changed["data.train"] == ("/far/away/web", "synthetic")
    assert changed["training.precision"] == ("fp16", "bf16")
    assert changed["model.num_layers"] == (80, 4)
    assert list((tmp_path / "tmp").glob("partrain-*")) == []  # torch leaves a folder of its own
    assert not (tmp_path / "runs").exists()


@pytest.mark.torch
def test_a_rank_that_fails_is_told_as_by_launch_and_its_run_is_kept(tmp_path: Path) -> None:
    job_file(tmp_path, JOB + "launch: {env: {PYTHONHOME: /nowhere}}\n")
    shown = rehearsed(tmp_path)
    assert shown.code == 5
    assert "failed: rank 0 (dp 0, pp 0, tp 0) left with exit code 1" in shown.out
    assert "the end of rank 0's log:" in shown.out
    kept = next(line for line in shown.out.splitlines() if line.startswith("kept ")).split()[-1]
    assert RunFolder(Path(kept)).log(0).exists()
