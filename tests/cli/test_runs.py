"""`partrain runs`, `partrain status` and `partrain logs` on run folders made by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partrain.run.folder import RunFolder
from tests.cli.command import ROOT, child, partrain
from tests.cli.run_folders import FAILED, STARTED, record, run_folder


def test_runs_are_listed_newest_first(tmp_path: Path):
    run_folder(tmp_path, "older")
    run_folder(tmp_path, "newer", outcome=FAILED, started=STARTED + 60)
    lines = [line.split() for line in partrain("runs", "--dir", str(tmp_path)).out.splitlines()]
    assert lines[0] == ["run", "state", "step", "loss", "started"]
    assert [line[:4] for line in lines[1:]] == [
        ["newer", "failed", "2/10", "2.5000"],
        ["older", "lost", "2/10", "2.5000"],
    ]


def test_runs_as_json(tmp_path: Path):
    run_folder(tmp_path, "only")
    document = json.loads(partrain("runs", "--dir", str(tmp_path), "--json").out)
    assert document["runs"] == [
        {
            "path": str(tmp_path / "only"),
            "name": "only",
            "state": "lost",
            "last_step": 2,
            "steps": 10,
            "last_loss": 2.5,
            "started": STARTED,
        }
    ]


def test_no_runs_is_no_error(tmp_path: Path):
    assert partrain("runs", "--dir", str(tmp_path / "none")).code == 0


def test_the_status_of_a_failed_run_has_the_first_failure_and_its_traceback(tmp_path: Path):
    path = run_folder(tmp_path, "demo", outcome=FAILED)
    shown = partrain("status", "demo", "--dir", str(tmp_path)).out
    assert "failed: rank 2 (dp 0, pp 1, tp 0): out of luck" in shown
    assert "  RuntimeError: out of luck" in shown
    assert ["0", "peer", "lost"] in [line.split()[:3] for line in shown.splitlines()]
    assert str(RunFolder(path).log(2)) in shown


def test_a_run_left_out_is_the_newest(tmp_path: Path):
    run_folder(tmp_path / "runs", "older")
    run_folder(tmp_path / "runs", "newer", started=STARTED + 60)
    assert json.loads(child("status", "--json", cwd=tmp_path).out)["name"] == "newer"


def test_a_loss_that_is_no_number_is_null_in_json(tmp_path: Path):
    path = run_folder(tmp_path, "demo")
    RunFolder(path).metrics.write_text(record(1, loss=float("nan")).to_json() + "\n")
    document = json.loads(partrain("status", str(path), "--json").out, parse_constant=pytest.fail)
    assert document["last"]["loss"] is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"training": 3}', "\x1b[31m", "{}" * 9])
def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path, content: str):
    folder = RunFolder(run_folder(tmp_path, "demo", outcome=FAILED))
    for path in (folder.plan, folder.outcome, folder.metrics):
        path.write_text(content)
    for command in ("status", "runs"):
        shown = partrain(command, *(["demo"] if command == "status" else []), "--dir", str(tmp_path))
        assert shown.code == 0
        assert "demo" in shown.out
        assert "\x1b" not in shown.out
    assert "outcome.json" in json.loads(partrain("status", str(folder.path), "--json").out)["damaged"]


def test_an_unknown_run_is_exit_code_2_with_the_nearest_names(tmp_path: Path):
    run_folder(tmp_path, "demo")
    shown = partrain("status", "dmo", "--dir", str(tmp_path))
    assert shown.code == 2
    assert "demo" in shown.err
    assert json.loads(partrain("status", "dmo", "--dir", str(tmp_path), "--json").out)["exit_code"] == 2


def test_logs_show_the_end_of_a_ranks_log_and_no_control_characters(tmp_path: Path):
    folder = RunFolder(run_folder(tmp_path, "demo"))
    folder.log(1).write_bytes(b"first\nsecond\n\x1b]0;title\x07third\n\xff")
    shown = partrain("logs", "demo", "--rank", "1", "--lines", "3", "--dir", str(tmp_path))
    assert shown.out == "second\n\\x1b]0;title\\x07third\n\ufffd\n"


def test_a_rank_without_a_log_is_told(tmp_path: Path):
    run_folder(tmp_path, "demo")
    assert partrain("logs", "demo", "--rank", "7", "--dir", str(tmp_path)).code == 2


def test_a_log_that_is_a_link_is_not_read(tmp_path: Path):
    folder = RunFolder(run_folder(tmp_path, "demo"))
    folder.log(0).symlink_to("/etc/hostname")
    shown = partrain("logs", "demo", "--dir", str(tmp_path))
    assert (shown.code, shown.out) == (2, "")
    assert "it is a link" in shown.err


def test_a_rank_that_has_a_log_is_named_where_another_has_none(tmp_path: Path):
    folder = RunFolder(run_folder(tmp_path, "demo"))
    assert "--rank 0" not in partrain("logs", "demo", "--rank", "1", "--dir", str(tmp_path)).err
    assert "--rank 0" not in partrain("logs", "demo", "--dir", str(tmp_path)).err
    folder.log(0).write_text("said\n")
    assert "--rank 0" in partrain("logs", "demo", "--rank", "1", "--dir", str(tmp_path)).err


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_logs_without_rights_are_told(tmp_path: Path):
    folder = RunFolder(run_folder(tmp_path, "demo"))
    folder.logs.chmod(0)
    shown = partrain("logs", "demo", "--dir", str(tmp_path))
    folder.logs.chmod(0o700)
    assert shown.code == 2
    assert "Permission denied" in shown.err


@pytest.mark.torch
def test_a_board_without_a_step_says_so(tmp_path: Path):
    run_folder(tmp_path, "fresh", steps=0)
    command = (sys.executable, "-m", "partrain", "board", "fresh", "--dir", str(tmp_path))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as board:
        assert board.stdout is not None
        first = board.stdout.readline()
        board.terminate()
    assert first == "no step of fresh is recorded yet: the board stays empty until one is\n"
