"""`partrain check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import JOB, ROOT, SHIPPED, child, job_file, partrain


def test_every_value_is_shown_with_its_origin(tmp_path: Path):
    shown = partrain("check", str(job_file(tmp_path)), "--set", "training.steps=5")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert shown.code == 0
    assert "steps: 5 # --set" in lines
    assert f"pp: 2 # {tmp_path}/job.yaml:6" in lines
    assert "num_layers: 4 # preset tiny" in lines
    assert "seed: 1 # default" in lines
    assert lines[-1] == "ok: 804K parameters, 5 steps, 2 ranks (dp 1 x pp 2 x tp 1)"


def test_the_resolved_job_is_a_job_with_the_same_plan(tmp_path: Path):
    job = job_file(tmp_path)
    resolved = json.loads(partrain("check", str(job), "--json").out)["job"]
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(resolved, indent=1))  # JSON is YAML
    plans = [json.loads(partrain("plan", str(path), "--json").out)["plan"] for path in (job, again)]
    for plan in plans:
        del plan["origins"]
        plan["notes"] = [note for note in plan["notes"] if "auto" not in note]
    assert plans[0] == plans[1]


def test_all_faults_go_to_standard_error_with_exit_code_2(tmp_path: Path):
    job = job_file(tmp_path, JOB.replace("pp: 2", "pp: 9, tp: 3"))
    shown = child("check", str(job), cwd=tmp_path)
    assert (shown.code, shown.out) == (2, "")
    assert f"{job}:6:16: parallel.pp: pp=9" in shown.err
    assert "tp=3 does not divide num_heads=4" in shown.err
    assert shown.err.splitlines()[-1] == "2 faults"


def test_faults_as_json_are_one_document(tmp_path: Path):
    shown = partrain("check", str(job_file(tmp_path, JOB.replace("pp: 2", "pp: 9"))), "--json")
    document = json.loads(shown.out)
    assert shown.code == document["exit_code"] == 2
    assert shown.err == ""
    assert document["faults"][0]["path"] == "parallel.pp"
    assert document["faults"][0]["place"] == {"source": f"{tmp_path}/job.yaml", "line": 6, "column": 16}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_job_passes(path: Path):
    shown = partrain("check", str(path), "--json")
    assert json.loads(shown.out)["ok"] is True


def test_without_a_job_this_machine_is_checked():
    shown = partrain("check")
    assert shown.code == 0
    assert any(line.split()[:2] == ["ok", "Python"] for line in shown.out.splitlines())
    rows = json.loads(partrain("check", "--json").out)["machine"]
    assert {"name", "value", "ok", "hint"} == set(rows[0])


def test_set_without_a_job_is_refused():
    assert partrain("check", "--set", "training.steps=5").code == 2


def test_control_characters_of_a_job_are_spelled_out(tmp_path: Path):
    shown = partrain("check", str(job_file(tmp_path, JOB.replace("small", '"\\e[31mred"'))))
    assert shown.code == 2
    assert "\x1b" not in shown.err


def test_a_reader_that_goes_away_ends_it_without_a_word(tmp_path: Path):
    command = f"set -o pipefail; '{sys.executable}' -m partrain schema | head -1"
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) in ((141, ""), (0, ""))
