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
    shown, document = partrain("check"), partrain("check", "--json")
    assert any(line.split()[:2] == ["ok", "Python"] for line in shown.out.splitlines())
    found = json.loads(document.out)
    assert {"name", "value", "ok", "hint"} == set(found["machine"][0])
    assert shown.code == document.code == (0 if found["ok"] else 2)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_machine_that_lacks_something_is_exit_code_2(options: tuple[str, ...], tmp_path: Path):
    program = "import importlib.metadata as found, sys\nfound.version = lambda name: '0.0.1'\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    shown = child("check", *options, cwd=tmp_path, environ=environ)
    assert (shown.code, shown.err) == (2, "")
    assert "2.6 or later is needed" in shown.out


def test_values_of_the_environment_are_not_shown(tmp_path: Path):
    job = job_file(tmp_path, JOB + "launch: {env: {TOKEN: '${SECRET}', NCCL_DEBUG: INFO}}\n")
    for options in ((), ("--json",)):
        shown = child("check", str(job), *options, cwd=tmp_path, environ={"SECRET": "hf_1234"})
        assert shown.code == 0
        assert "hf_1234" not in shown.out
        assert "TOKEN" in shown.out


def test_only_the_option_json_asks_for_json(tmp_path: Path):
    job = str(job_file(tmp_path))
    shown = partrain("check", job, "--set", "name=no name", "--set", "--json")
    assert (shown.code, shown.out) == (2, "")


@pytest.mark.parametrize(
    "wrong", [("--sett", "a=1"), ("one.yaml", "two.yaml"), ("--set", "training.steps=5")]
)
def test_wrong_words_are_json_too(wrong: tuple[str, ...]):
    shown = partrain("check", *wrong, "--json")
    document = json.loads(shown.out)
    assert shown.code == document["exit_code"] == 2
    assert document["error"]
    assert shown.err == ""


def test_a_plan_is_told_from_a_job(tmp_path: Path):
    plan = tmp_path / "plan.lock"
    assert partrain("plan", str(job_file(tmp_path)), "--out", str(plan)).code == 0
    shown = partrain("check", str(plan))
    assert shown.code == 2
    assert shown.err.splitlines() == [
        f"{plan}: a plan came, not a job",
        "      allowed: a job file",
        f"      fix: partrain launch {plan}",
    ]


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
