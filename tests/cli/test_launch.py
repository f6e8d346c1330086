"""`partrain launch`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from partrain.run.folder import RunFolder
from tests.cli.command import SHIPPED, child, job_file, partrain

NO_TORCH = """\
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
"""


def test_without_torch_it_names_the_extra(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    root = Path(__file__).resolve().parents[2]
    job = str(job_file(tmp_path))
    shown = child("launch", job, cwd=tmp_path, environ={"PYTHONPATH": f"{root}:{tmp_path}"})
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
    document = json.loads(partrain("launch", str(path), "--dry-run", "--json").out)
    layout = document["plan"]["layout"]
    assert len(document["hosts"][0]["ranks"]) == layout["dp"] * layout["pp"] * layout["tp"]


def test_set_does_not_change_a_plan(tmp_path: Path):
    plan = tmp_path / "plan.json"
    assert partrain("plan", str(job_file(tmp_path)), "--out", str(plan)).code == 0
    shown = partrain("launch", str(plan), "--set", "training.steps=5")
    assert shown.code == 2
    assert "a plan is decided" in shown.err


@pytest.mark.torch
def test_a_run_from_launch_to_status(tmp_path: Path):
    job = str(job_file(tmp_path))
    shown = child("launch", job, "--set", "training.steps=2", cwd=tmp_path)
    folder = RunFolder(tmp_path / "runs" / "small")
    assert shown.code == 0, shown.out + shown.err
    assert [line.split()[0] for line in shown.out.splitlines() if re.match(r" +\d/2 ", line)] == [
        "1/2",
        "2/2",
    ]
    assert str(folder.path) in shown.out
    assert "partrain board small" in shown.out
    assert "--set training.steps=2" in folder.job.read_text()
    assert "Warning" not in shown.out + shown.err
    status = json.loads(child("status", "--json", cwd=tmp_path).out)
    assert (status["state"], status["step"], status["damaged"]) == ("done", 2, [])
    again = child("launch", job, "--set", "training.steps=2", cwd=tmp_path)
    assert again.code == 2
    assert "--new" in again.err
