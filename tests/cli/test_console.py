"""What a person sees of a run while it goes on, and at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from partrain.cli.console import Console, evaluation_line, step_line
from partrain.cli.outcomes import show_next, show_outcome, show_summary
from partrain.cli.summary import Summary, evaluated, summed
from partrain.launch.events import Evaluated, Failed, Recorded, Started, Stopping
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.run.records import StepRecord
from tests.cli.command import job_file, partrain
from tests.cli.run_folders import FAILED, evaluation, record


def plan_of(folder: Path, *overrides: str) -> Plan:
    options = [word for override in overrides for word in ("--set", override)]
    document = json.loads(partrain("plan", str(job_file(folder)), "--json", *options).out)
    return Plan.from_json(json.dumps(document["plan"]))


def lines_of(plan: Plan, num_steps: int, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    with Console(plan) as console:
        for step in range(num_steps):
            console.on_event(Recorded(record(step + 1)))
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_step_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    header, first, second, _ = lines_of(plan_of(tmp_path), 3, capsys)
    assert header == ["step", "loss", "tokens/s", "step", "time", "memory", "grad", "norm", "lr", "left"]
    assert first == ["1/3", "2.5000", "8.19K", "500", "ms", "512.0", "MiB", "0.5", "1.00e-03"]
    # One step of 0.5 s is left after the second of three.
    assert second == ["2/3", "2.5000", "8.19K", "500", "ms", "512.0", "MiB", "0.5", "1.00e-03", "500", "ms"]


def test_log_every_thins_the_lines_but_keeps_first_and_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan = plan_of(tmp_path, "monitor.log_every=5", "training.steps=12")
    steps = [line[0] for line in lines_of(plan, 12, capsys)[1:]]
    assert steps == ["1/12", "5/12", "10/12", "12/12"]


def test_the_columns_are_named_again_after_a_screenful(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = lines_of(plan_of(tmp_path, "training.steps=81"), 81, capsys)
    assert [number for number, line in enumerate(lines) if line[0] == "step"] == [0, 41, 82]


def test_the_widest_step_fits_80_columns():
    wide = record(999_999, loss=-12.34567)
    assert len(step_line(wide, steps=999_999, left_s=90061.0)) <= 80


def test_an_evaluation_is_a_line_below_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Console(plan_of(tmp_path)) as console:
        for event in (Recorded(record(1)), Evaluated(evaluation(1)), Recorded(record(2))):
            console.on_event(event)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["1/3", "validation", "loss", "2.0000,", "perplexity", "7.389,", "2.0", "s"]
    assert lines[3].split()[-1] == "ms"  # what is left is told from the steps alone


def test_the_widest_evaluation_fits_80_columns():
    wide = replace(evaluation(999_999, loss=689.34567), evaluation_s=90061.0)
    assert "perplexity 2.393e+299" in evaluation_line(wide, steps=999_999)
    assert len(evaluation_line(wide, steps=999_999)) <= 80


def test_the_summary_has_the_last_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    summary = summary_of(record(1), record(2))
    for told in (evaluation(1), evaluation(2, loss=1e9)):
        summary = evaluated(summary, told)
    rows = summary_rows(summary, tmp_path, capsys)
    assert rows["validation"] == "loss 1000000000.0000, perplexity inf at step 2"
    assert rows["evaluation"] == "4.0 s, in no step's time"
    assert rows["time"] == "1.0 s for 2 steps"
    assert evaluated(None, evaluation(1)) is None


def test_other_events_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert FAILED.failure is not None
    console = Console(plan_of(tmp_path))
    for event in (Started({0: 11, 1: 12}), Failed(FAILED.message, FAILED.failure), Stopping("SIGINT")):
        console.on_event(event)
    out = capsys.readouterr().out
    assert "2 processes started" in out
    assert "rank 2 failed: ending all ranks" in out
    assert "SIGINT: ending all ranks; once more kills them" in out


def test_a_warning_of_a_step_is_told_whether_the_step_is_shown_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    console = Console(plan_of(tmp_path, "monitor.log_every=5", "training.steps=12"))
    console.on_event(Recorded(replace(record(3), warning="step 3: the loss jumped")))
    assert capsys.readouterr().out == "step 3: the loss jumped\n"


def test_a_training_that_ended_itself_is_no_failure_of_a_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert FAILED.failure is not None
    failure = replace(FAILED.failure, kind="guard")
    Console(plan_of(tmp_path)).on_event(Failed("step 3: x", failure))
    show_outcome(replace(FAILED, failure=failure), RunFolder(tmp_path))
    out = capsys.readouterr().out
    assert "the training failed: ending all ranks" in out
    assert "rank 2 said:" in out


def test_a_file_of_tokens_is_looked_at_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan = plan_of(tmp_path)
    data = replace(plan.data, source="/corpus/train.bin", num_tokens=1_000_000_000_000, vocab_size=256)
    Console(replace(plan, data=data)).on_event(Started({0: 11}))
    Console(plan).on_event(Started({0: 11}))
    first, second = capsys.readouterr().out.splitlines()
    assert "first all 1.00T tokens of the data are looked at" in first
    assert "looked at" not in second


def summary_of(*records: StepRecord) -> Summary | None:
    return reduce(summed, records, None)


def summary_rows(summary: Summary | None, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    show_summary(summary, RunFolder(folder))
    return dict(line.split(None, 1) for line in capsys.readouterr().out.split("\n") if line)


def test_the_summary_counts_speed_after_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    slow = replace(record(1, loss=5.5), step_s=9.0)
    rows = summary_rows(summary_of(slow, record(2), record(3)), tmp_path, capsys)
    assert rows["loss"] == "5.5000 at step 1, 2.5000 at step 3"
    assert rows["time"] == "10.0 s for 3 steps"
    assert rows["speed"] == "8.19K tokens/s after the first step"  # 2 x 4096 tokens in 2 x 0.5 s
    assert rows["run"] == str(tmp_path)


def test_the_summary_counts_updates_that_were_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    skipped = [replace(record(step), skipped=step in (2, 3)) for step in range(1, 5)]
    assert summary_rows(summary_of(*skipped), tmp_path, capsys)["skipped"] == "the update of 2 steps"
    assert "skipped" not in summary_rows(summary_of(record(1)), tmp_path, capsys)


def test_the_summary_sets_the_memory_beside_the_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = replace(record(1), most_bytes=(900, 1024), predicted_bytes=(1000, 1024))
    grown = replace(record(2), most_bytes=(1000, 2048), predicted_bytes=(1000, 1024))
    one = replace(record(1), most_bytes=(990,), predicted_bytes=(1000,))
    above = summary_rows(summary_of(first, grown, record(3)), tmp_path, capsys)["memory"]
    below = summary_rows(summary_of(one), tmp_path, capsys)["memory"]
    assert above.endswith("; estimated on stage 1: 1.0 KiB, measured: 2.0 KiB (+100.0%)")
    assert below.endswith("; estimated: 1000 B, measured: 990 B (-1.0%)")
    assert "estimated" not in summary_rows(summary_of(record(1)), tmp_path, capsys)["memory"]


def test_steps_that_were_not_told_are_not_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = summary_rows(summary_of(record(1), record(2), record(10)), tmp_path, capsys)
    assert rows["time"] == "1.5 s for the 3 of 10 steps that were told here"
    assert rows["speed"] == "8.19K tokens/s after the first step"


def test_without_a_step_the_summary_says_where_things_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert list(summary_rows(None, tmp_path, capsys)) == ["run", "metrics", "TensorBoard", "logs"]


def test_commands_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder(tmp_path / "my runs" / "demo")
    again = ("launch", "my job.yaml", "--set", "data.train=a b.bin")
    show_next(folder, FAILED, again)
    commands = [line.partition("  partrain ")[2] for line in capsys.readouterr().out.splitlines()]
    assert f"logs demo --rank 2 --dir '{tmp_path}/my runs'" in commands
    assert "launch 'my job.yaml' --set 'data.train=a b.bin'" in commands
    assert "launch 'my job.yaml' --set 'data.train=a b.bin' --new" in commands


def test_control_characters_of_a_traceback_are_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert FAILED.failure is not None
    failure = replace(FAILED.failure, traceback="\x1b[2J\nboom")
    show_outcome(replace(FAILED, failure=failure), RunFolder(tmp_path))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "  boom" in out.splitlines()
