"""Runs as their folders tell them, whatever is in those folders."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from partrain.launch.events import Recorded, from_line, to_line
from partrain.run.folder import RunFolder, write_json
from partrain.run.launcher import Launcher, read_launcher
from partrain.run.metrics import Tail, cut_after, last_evaluation, last_record, record_from
from partrain.run.place import new_run_folder
from partrain.run.process import host_mark, process_state
from partrain.run.records import EvaluationRecord, Failure, Outcome, StepRecord, failure_from, perplexity
from partrain.run.runs import (
    RunChoiceError,
    find_run,
    list_runs,
    newest_run,
    read_outcome,
    run_info,
    state_of,
)

RECORD = StepRecord(
    step=1,
    loss=5.5,
    lr=1e-3,
    grad_norm=1.0,
    step_s=0.1,
    tokens=512,
    tokens_per_s=5120.0,
    flops=1e9,
    mfu=None,
    peak_bytes=2**20,
    time=1.0,
)


def line(step: int) -> str:
    return json.dumps({**asdict(RECORD), "step": step}) + "\n"


def launched_by(folder: RunFolder, **changed: object) -> None:
    own = read_launcher(folder)
    write_json(folder.launch, {**asdict(own), **changed})


def test_the_newest_run_comes_first(tmp_path):
    folders = [new_run_folder(tmp_path, name) for name in ("b", "a", "c")]
    for started, folder in enumerate(folders):
        launched_by(folder, started=float(started))
    assert [info.name for info in list_runs(tmp_path)] == ["c", "a", "b"]
    assert newest_run(tmp_path).name == "c"


def test_no_runs_are_said_to_be_none(tmp_path):
    assert list_runs(tmp_path / "nowhere") == ()
    with pytest.raises(RunChoiceError, match="there are no runs"):
        newest_run(tmp_path)


def test_a_run_is_found_by_its_name_or_path_and_a_slip_gets_the_nearest(tmp_path, monkeypatch):
    new_run_folder(tmp_path / "runs", "demo")
    monkeypatch.chdir(tmp_path)
    assert find_run(Path("runs"), "demo").name == "demo"
    assert find_run(Path("elsewhere"), "runs/demo/").path == tmp_path / "runs" / "demo"
    with pytest.raises(RunChoiceError, match=r"no run 'dmeo'[\s\S]*runs in runs: demo"):
        find_run(Path("runs"), "dmeo")


@pytest.mark.parametrize("name", ["", "..", "../../etc", "/", "a\0b", "x" * 5000, "demo/../..", "-demo"])
def test_a_name_that_is_none_finds_no_run(tmp_path, name):
    with pytest.raises(RunChoiceError, match="no run"):
        find_run(tmp_path, name)


def test_a_run_stands_as_its_launcher_does(tmp_path):
    folder = new_run_folder(tmp_path, "demo")
    assert state_of(folder) == "running"
    launched_by(folder, start="before")  # the pid is another process's now
    assert state_of(folder) == "lost"
    launched_by(folder, boot="an earlier one")
    assert state_of(folder) == "lost"
    launched_by(folder, host="elsewhere")
    assert state_of(folder) == "unknown"
    write_json(folder.outcome, asdict(Outcome("failed", 5, "rank 1 failed", 2.0)))
    assert state_of(folder) == "failed"


def test_a_launcher_that_ended_and_was_not_waited_for_is_gone(tmp_path):
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = process_state(process.pid)
        assert found is not None
        folder = new_run_folder(tmp_path, "demo")
        write_json(folder.launch, asdict(Launcher(process.pid, found.start, *host_mark(), started=1.0)))
        assert state_of(folder) == "running"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(folder) == "lost"


def test_metrics_are_read_while_they_grow(tmp_path):
    tail = Tail(tmp_path / "metrics.jsonl", record_from)
    assert tail.read() == ()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line(1) + line(2)[:40])
        file.flush()
        assert [record.step for record in tail.read()] == [1]
        file.write(line(2)[40:] + "not a record\n" + line(3))
    assert [record.step for record in tail.read()] == [2, 3]
    assert tail.read() == ()


def test_a_file_that_takes_the_place_of_the_one_read_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2) + line(3))
    tail = Tail(path, record_from)
    assert [record.step for record in tail.read()] == [1, 2, 3]
    cut_after(1, path, tmp_path / "dropped")
    with path.open("a") as file:
        file.write(line(2))
    assert [record.step for record in tail.read()] == [1, 2]


def test_records_of_steps_that_are_done_again_are_put_aside(tmp_path):
    path, dropped = tmp_path / "metrics.jsonl", tmp_path / "dropped"
    path.write_text(line(1) + line(2) + line(3) + line(4)[:20])
    cut_after(2, path, dropped)
    assert path.read_text() == line(1) + line(2)
    assert dropped.read_text() == line(3) + line(4)[:20]
    before = path.stat().st_ino
    cut_after(2, path, dropped)
    assert path.stat().st_ino == before
    cut_after(5, tmp_path / "not there", dropped)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["dropped", "metrics.jsonl"]


def test_a_long_line_does_not_stop_the_reading(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * 700_000 + "\n" + line(7))
    tail = Tail(path, record_from)
    assert [record.step for _ in range(4) for record in tail.read()] == [7]


def test_the_last_record_is_the_last_whole_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step) for step in range(1, 2000)) + line(2000)[:-10])
    assert last_record(path).step == 1999


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "[" * 100_000, '{"step": "1"}', line(1)[:-9], line(1).replace("5.5", "true")],
)
def test_what_is_no_record_is_none(text):
    assert record_from(text) is None


def test_evaluations_lie_among_the_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    told = EvaluationRecord(4, 2.0, perplexity(2.0), 64, 1.5, 2.0)
    lines = [RECORD.to_json(), told.to_json(), replace(RECORD, step=5).to_json()]
    path.write_text("".join(line + "\n" for line in lines))
    assert [type(record) for record in Tail(path, record_from).read()] == [
        StepRecord,
        EvaluationRecord,
        StepRecord,
    ]
    assert (last_record(path).step, last_evaluation(path)) == (5, told)
    path.write_text("".join(line + "\n" for line in lines[::-1]))
    assert last_record(path) == RECORD
    path.write_text(RECORD.to_json())
    assert last_evaluation(path) is None


def test_an_evaluation_is_no_step_to_those_who_know_steps_alone():
    told = json.loads(EvaluationRecord(4, 2.0, perplexity(2.0), 64, 1.5, 2.0).to_json())
    assert "loss" not in told  # without one of its keys a line was never taken for a step


def test_a_perplexity_beyond_all_numbers_is_null_in_the_file():
    told = EvaluationRecord(4, 1e4, perplexity(1e4), 64, 1.5, 2.0)
    assert json.loads(told.to_json())["perplexity"] is None
    read = record_from(told.to_json())
    assert (read.validation_loss, math.isnan(read.perplexity)) == (1e4, True)


def test_a_key_of_a_later_version_is_left_aside():
    assert record_from(json.dumps({**asdict(RECORD), "energy_j": 1})) == RECORD


def test_a_record_without_later_fields_is_one_of_a_usual_step():
    lines = {**asdict(RECORD)}
    for later in ("skipped", "warning", "loss_scale", "most_bytes", "least_bytes", "predicted_bytes"):
        del lines[later]
    assert record_from(json.dumps(lines)) == RECORD
    marked = replace(RECORD, skipped=True, warning="step 1: x")
    assert record_from(marked.to_json()) == marked


def test_sizes_of_stages_are_read_as_they_were_written():
    grown = replace(RECORD, most_bytes=(5, 7), least_bytes=(4, 7), predicted_bytes=(5, 6))
    assert record_from(grown.to_json()) == grown
    assert from_line(to_line(Recorded(grown))) == Recorded(grown)


@pytest.mark.parametrize(
    "change",
    [
        {"skipped": 1},
        {"skipped": None},
        {"warning": None},
        {"loss": True},
        {"most_bytes": 5},
        {"most_bytes": ["5"]},
        {"least_bytes": None},
        {"predicted_bytes": [2**63]},
    ],
)
def test_a_value_of_another_kind_is_no_record(change):
    assert record_from(json.dumps({**asdict(RECORD), **change})) is None


def test_a_skipped_step_is_read_as_it_was_written():
    record = record_from(replace(RECORD, grad_norm=math.inf, loss_scale=65536.0, skipped=True).to_json())
    assert (record.loss_scale, record.skipped, math.isnan(record.grad_norm)) == (65536.0, True, True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_measured_number_that_json_cannot_spell_is_null_and_read_as_nan(value):
    written = replace(RECORD, loss=value, grad_norm=value).to_json()
    assert json.loads(written, parse_constant=pytest.fail)["loss"] is None
    record = record_from(written)
    assert math.isnan(record.loss)
    assert math.isnan(record.grad_norm)
    assert record.mfu is None
    assert replace(record, loss=5.5, grad_norm=1.0) == RECORD


def test_numbers_beyond_all_measure_are_no_record():
    for change in ({"peak_bytes": 10**400}, {"tokens": -(10**30)}):
        assert record_from(json.dumps({**asdict(RECORD), **change})) is None


FAILURE = asdict(Failure(0, 1.0, "error", "E: x"))
OUTCOME = {
    **asdict(Outcome("failed", 5, "rank 0: E: x", 2.0)),
    "failure": FAILURE,
    "other_failures": [FAILURE],
}


def test_an_outcome_of_a_later_version_is_read(tmp_path):
    folder = new_run_folder(tmp_path, "demo")
    write_json(folder.outcome, {**OUTCOME, "energy_j": 1, "failure": {**FAILURE, "node": 3}})
    outcome = read_outcome(folder)
    assert (outcome.message, outcome.failure, len(outcome.other_failures)) == (
        "rank 0: E: x",
        failure_from(FAILURE),
        1,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"message": 7},
        {"exit_code": True},
        {"finished": 1e300},
        {"finished": None},
        {"failure": [FAILURE]},
        {"failure": {**FAILURE, "traceback": 5}},
        {"failure": {**FAILURE, "step": "1"}},
        {"failure": {"rank": 0}},
        {"other_failures": 3},
        {"other_failures": [{**FAILURE, "kind": None}]},
        {"other_failures": ["x"]},
    ],
)
def test_an_outcome_of_other_kinds_of_value_is_none(tmp_path, change):
    folder = new_run_folder(tmp_path, "demo")
    write_json(folder.outcome, {**OUTCOME, **change})
    assert read_outcome(folder) is None
    assert run_info(folder).state == "running"


@pytest.mark.parametrize("started", [1e300, -1.0, math.nan, math.inf, "now", True, None])
def test_a_start_that_no_calendar_knows_is_not_read(tmp_path, started):
    folder = new_run_folder(tmp_path, "demo")
    launched_by(folder, started=started)
    assert read_launcher(folder) is None
    assert list_runs(tmp_path)[0].started is None


@pytest.mark.parametrize("steps", [True, -1, 10**4000, 1.5, "10", None, [10]])
def test_steps_that_are_none_are_not_known(tmp_path, steps):
    folder = new_run_folder(tmp_path, "demo")
    write_json(folder.plan, {"training": {"steps": steps}})
    assert run_info(folder).steps is None


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def folder_there(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize(
    "spoil",
    [
        fifo,
        endless,
        folder_there,
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text('{"state": "done"'),
        lambda path: path.write_text('{"state": ["done"], "pid": "1", "training": 3, "exit_code": "0"}'),
        lambda path: path.write_text('{"state": "done", "exit_code": 0, "failure": 3}'),
        lambda path: path.write_text("[" * 200_000),
    ],
)
def test_a_spoiled_folder_is_told_as_far_as_it_goes(tmp_path, spoil):
    spoiled = new_run_folder(tmp_path, "spoiled")
    write_json(spoiled.plan, {"training": {"steps": 10}})
    for path in (spoiled.launch, spoiled.metrics, spoiled.outcome):
        spoil(path)
    info = run_info(spoiled)
    assert (info.state, info.last_step, info.steps, info.last_loss) == ("lost", 0, 10, None)
    assert info in list_runs(tmp_path)
