"""`partrain launch`."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

from partrain.cli.launch import kept_job
from partrain.run.folder import RunFolder
from partrain.spec.load import read_job_text
from tests.cli.command import JOB, ROOT, SHIPPED, child, job_file, partrain

NO_TORCH = """\
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
"""


def test_without_torch_it_names_the_extra(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    job = str(job_file(tmp_path))
    shown = child("launch", job, cwd=tmp_path, environ={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert shown.code == 4
    assert re.match(r"torch\b.* not installed", shown.err)
    assert "pip install 'partrain[train]'" in shown.err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_shows_what_would_be_started_and_starts_nothing(tmp_path: Path):
    job = str(job_file(tmp_path))
    options = ("--dry-run", "--json", "--set", f"run.dir={tmp_path / 'runs'}")
    document = json.loads(partrain("launch", job, *options).out)
    ranks = document["hosts"][0]["ranks"]
    assert [rank["label"] for rank in ranks] == ["dp 0, pp 0, tp 0", "dp 0, pp 1, tp 0"]
    assert ranks[1]["env"]["RANK"] == "1"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_job_is_dry_launched(path: Path):
    shown = partrain("launch", str(path), "--dry-run", "--json")
    document = json.loads(shown.out)
    if path.stem in ("cluster", "llama-3.1-405b-128xdgx-h100", "llama-3.1-405b-2048xdgx-h100"):
        assert shown.code == document["exit_code"] == 4
        assert "launching on several is planned" in document["error"]
        return
    layout = document["plan"]["layout"]
    assert len(document["hosts"][0]["ranks"]) == layout["dp"] * layout["pp"] * layout["tp"]


TOO_LITTLE = "hardware.memory_budget=1e-9"


def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path):
    job = str(job_file(tmp_path, JOB.replace("node: cpu", "node: 2xl4").replace("tiny", "llama-3.2-3b")))
    shown = partrain("launch", job, "--dry-run")
    assert (shown.code, shown.out) == (3, "")
    assert shown.err.startswith("does not fit: ")
    assert "--over-budget starts it all the same" in shown.err
    fixes = json.loads(partrain("estimate", job, "--json").out)["fixes"]
    assert fixes
    assert all("\n".join(f"     {line}" for line in fix["lines"]) in shown.err for fix in fixes)
    document = json.loads(partrain("launch", job, "--dry-run", "--json").out)
    assert (document["exit_code"], document["fixes"]) == (3, fixes)


def test_what_does_not_fit_starts_when_that_is_wanted(tmp_path: Path):
    job, plan = str(job_file(tmp_path)), tmp_path / "plan.json"
    assert partrain("plan", job, "--set", TOO_LITTLE, "--out", str(plan)).code == 0
    for words in ((job, "--set", TOO_LITTLE), (str(plan),)):
        assert partrain("launch", *words, "--dry-run").code == 3
        shown = partrain("launch", *words, "--dry-run", "--over-budget")
        assert shown.code == 0
        assert "note: does not fit: " in shown.out


def test_set_does_not_change_a_plan(tmp_path: Path):
    plan = tmp_path / "plan.json"
    assert partrain("plan", str(job_file(tmp_path)), "--out", str(plan)).code == 0
    shown = partrain("launch", str(plan), "--set", "training.steps=5")
    assert shown.code == 2
    assert "a plan is decided" in shown.err


def test_a_plan_is_recognised_by_its_content(tmp_path: Path):
    plan = tmp_path / "saved-plan"
    assert partrain("plan", str(job_file(tmp_path)), "--out", str(plan)).code == 0
    assert partrain("launch", str(plan), "--dry-run").code == 0
    assert "a plan is decided" in partrain("launch", str(plan), "--set", "training.steps=5").err


def test_an_edited_plan_is_judged_before_anything_starts(tmp_path: Path):
    plan = tmp_path / "plan.json"
    assert partrain("plan", str(job_file(tmp_path)), "--out", str(plan)).code == 0
    plan.write_text(plan.read_text().replace('"pp": 2', '"pp": 3').replace('"tp": 1', '"tp": 3'))
    shown = partrain("launch", str(plan), "--dry-run")
    assert shown.code == 2
    assert f"{plan}: layout.tp: tp=3 does not divide num_heads=4" in shown.err
    assert f"{plan}: layout.stage_bounds: [0, 3, 6] came" in shown.err


def test_the_kept_job_is_the_given_one_byte_for_byte():
    given = b"\xef\xbb\xbfversion: 1\r\nname: caf\xc3\xa9\r\n"
    assert kept_job(given, []).encode() == given
    assert kept_job(b"steps: 5", []) == "steps: 5"


@pytest.mark.parametrize("last", ["hardware: {node: cpu}", "name: small", "name: small\r"])
def test_the_kept_job_reads_as_it_was_given(last: str):
    text = JOB.replace("hardware: {node: cpu}\n", "").replace("name: small\n", "")
    given = text + ("name: small\n" if "node" in last else "hardware: {node: cpu}\n") + last
    kept = kept_job(given.encode(), ["training.steps=5"])
    assert kept.splitlines()[-1] == "# launched with --set training.steps=5"
    before, after = (read_job_text(t.encode(), source="job", environ={}) for t in (given, kept))
    assert after.faults == ()
    assert after.job == before.job


def test_a_secret_given_by_an_option_is_not_kept():
    options = ["launch.env.TOKEN=hf_1234", "launch={env: {TOKEN: hf_1234}}", "training.steps=5"]
    kept = kept_job(b"", options)
    assert "hf_1234" not in kept
    assert kept.splitlines()[0].endswith("# launched with --set launch.env.TOKEN=***")


def test_a_dry_run_shows_no_value_of_the_environment(tmp_path: Path):
    job = str(job_file(tmp_path, JOB + "launch: {env: {TOKEN: hf_1234}}\n"))
    for options in ((), ("--json",)):
        shown = partrain("launch", job, "--dry-run", *options)
        assert shown.code == 0
        assert "hf_1234" not in shown.out
        assert "TOKEN" in shown.out
    assert "TOKEN=***" in partrain("launch", job, "--dry-run").out


NVIDIA_SMI = """\
#!/bin/sh
echo asked >> {log}
echo '0, GPU-1a2b, NVIDIA H200, 143771'
echo '1, GPU-3c4d, NVIDIA H200, 143771'
"""


def test_the_driver_is_asked_once(tmp_path: Path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(NVIDIA_SMI.format(log=tmp_path / "log"))
    tool.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    job = str(job_file(tmp_path, JOB.replace("hardware: {node: cpu}\n", "")))
    shown = child("launch", job, cwd=tmp_path, environ=environ)
    assert (shown.code, "not installed" in shown.err) == (4, True)
    assert (tmp_path / "log").read_text() == "asked\n"


@pytest.mark.torch
def test_a_run_from_launch_to_status(tmp_path: Path):
    job = str(job_file(tmp_path))
    data = ("data.train=builtin:python-source", "data.validation=1%", "training.evaluate.every=1")
    ramp = "training.batch_ramp={start: 4, increment: 4, samples: 4}"
    options = [word for change in (*data, ramp, TOO_LITTLE) for word in ("--set", change)]
    words = ("launch", job, "--set", "training.steps=2", *options)
    assert child(*words, cwd=tmp_path).code == 3
    shown = child(*words, "--over-budget", cwd=tmp_path)
    folder = RunFolder(tmp_path / "runs" / "small")
    assert shown.code == 0, shown.out + shown.err
    assert json.loads(folder.launch.read_text())["over_budget"] is True
    assert [line.split()[0] for line in shown.out.splitlines() if re.match(r" +\d/2 ", line)] == [
        "1/2",
        "1/2",
        "2/2",
        "2/2",
    ]
    assert shown.out.count("validation loss") == 2
    assert str(folder.path) in shown.out
    assert "partrain board small" in shown.out
    assert "--set training.steps=2" in folder.job.read_text()
    assert "Warning" not in shown.out + shown.err
    status = json.loads(child("status", "--json", cwd=tmp_path).out)
    assert (status["state"], status["step"], status["damaged"]) == ("done", 2, [])
    assert status["last"]["tokens"] == (4 + 8) * 32
    evaluation = status["evaluation"]
    assert (evaluation["step"], evaluation["num_sequences"]) == (2, 8)
    assert 0 < evaluation["validation_loss"] < 8
    assert evaluation["perplexity"] == pytest.approx(math.exp(evaluation["validation_loss"]))
    assert f"loss {evaluation['validation_loss']:.4f}" in child("status", cwd=tmp_path).out
    drawn = b"".join(file.read_bytes() for file in folder.events.iterdir())
    assert b"loss/validation" in drawn
    assert b"perplexity/validation" in drawn
    again = child("launch", job, "--set", "training.steps=2", cwd=tmp_path)
    assert again.code == 2
    assert "--new" in again.err
