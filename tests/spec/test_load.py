"""Good jobs, where their values come from, and files that are no job files."""

import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from partrain.errors import Place
from partrain.spec.job import JobSpec
from partrain.spec.load import Reading, place_of, read_job, read_job_text

DEMO = """\
version: 1
name: demo
model: {preset: tiny}
data: {train: builtin:python-source}
training:
  sequence_length: 128
  global_batch_size: 32
  steps: 120
  optimizer: {lr: 2e-5, betas: [.9, 0.95]}
parallel: {pp: 2, tp: 2}
"""


def read(text: str | bytes = DEMO, *overrides: str, **environ: str) -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return read_job_text(data, source="job.yaml", overrides=overrides, environ=environ)


def job_of(reading: Reading) -> JobSpec:
    assert reading.faults == ()
    assert reading.doubtful == frozenset()
    assert reading.job is not None
    return reading.job


def messages(reading: Reading) -> list[str]:
    return [f"{fault.path}: {fault.message}" for fault in reading.faults]


def test_a_job_holds_what_its_file_says() -> None:
    job = job_of(read())
    assert (job.name, job.model.preset, job.data.train) == ("demo", "tiny", "builtin:python-source")
    assert (job.training.steps, job.training.optimizer.betas) == (120, (0.9, 0.95))
    assert (job.parallel.pp, job.parallel.tp, job.parallel.dp) == (2, 2, "auto")


def test_a_rate_without_a_decimal_point_is_a_number() -> None:
    assert job_of(read()).training.optimizer.lr == 0.00002


def test_gradient_clipping_has_its_own_default() -> None:
    assert job_of(read()).training.optimizer.grad_clip == 1.0
    assert job_of(read(DEMO, "training.optimizer.grad_clip=0")).training.optimizer.grad_clip == 0


def test_sequence_parallelism_is_no_degree_of_the_batch() -> None:
    job = job_of(
        read(DEMO, "parallel.dp=2", "training.micro_batch_size=2", "parallel.sequence_parallel=true")
    )
    assert job.training.global_batch_size == 32


def test_a_whole_number_will_do_where_a_number_is_wanted() -> None:
    assert job_of(read(DEMO, "training.optimizer.weight_decay=1")).training.optimizer.weight_decay == 1.0


def test_names_that_yaml_takes_for_booleans_stay_text() -> None:
    job = job_of(
        read(DEMO.replace("demo", "on") + "launch: {env: {A: no, B: 1:30, C: 2026-12-01, D: 0x10}}\n")
    )
    assert job.name == "on"
    assert job.launch.env == {"A": "no", "B": "1:30", "C": "2026-12-01", "D": "0x10"}


def test_a_byte_order_mark_and_windows_line_ends_change_nothing() -> None:
    data = b"\xef\xbb\xbf" + DEMO.replace("\n", "\r\n").encode()
    assert job_of(read(data)) == job_of(read())
    assert read(data).places == read().places


def test_a_document_may_be_framed_and_commented() -> None:
    assert job_of(read("# a job\n---\n" + DEMO + "...\n# the end\n")) == job_of(read())


def test_every_value_has_its_place() -> None:
    reading = read()
    assert reading.places["training.steps"] == Place("job.yaml", 8, 10, 3, "  steps: 120")
    assert reading.places["training"] == Place("job.yaml", 5, 1, 8, "training:")
    line = "  optimizer: {lr: 2e-5, betas: [.9, 0.95]}"
    assert reading.places["training.optimizer.betas.1"] == Place("job.yaml", 9, 37, 4, line)


def test_what_was_not_given_is_placed_at_the_section_around_it() -> None:
    reading = read()
    assert place_of(reading, "training.optimizer.eps") == reading.places["training.optimizer"]
    assert place_of(reading, "parallel.dp") == reading.places["parallel"]
    assert place_of(reading, "monitor.log_every") is None


def test_every_value_given_has_its_origin() -> None:
    reading = read(DEMO.replace("120", "${STEPS}"), "parallel.tp=1", STEPS="7")
    assert reading.origins["name"] == "job.yaml:2"
    assert reading.origins["parallel.tp"] == "--set"
    assert reading.origins["training.steps"] == "job.yaml:8 (${STEPS})"
    assert "parallel.dp" not in reading.origins


@pytest.mark.parametrize(
    ("written", "steps"),
    [("${STEPS}", 50), ("${NONE:-70}", 70), ("${STEPS}0", 500), ("${STEPS:-1}", 50), ("1${NONE:-2}3", 123)],
)
def test_a_variable_is_replaced_before_the_value_is_typed(written: str, steps: int) -> None:
    assert job_of(read(DEMO.replace("120", written), STEPS="50")).training.steps == steps


def test_a_variable_in_quotes_is_text() -> None:
    assert messages(read(DEMO.replace("120", '"${STEPS}"'), STEPS="50")) == [
        'training.steps: text "50" came from ${STEPS}'
    ]


def test_two_dollars_stand_for_one() -> None:
    job = job_of(read(DEMO + 'run: {dir: "$${HOME}/$HOME/${HOME}"}\n', HOME="/root"))
    assert job.run.dir == "${HOME}/$HOME//root"


def test_a_variable_never_becomes_structure() -> None:
    job = job_of(read(DEMO.replace("builtin:python-source", '"${DATA}"'), DATA="a}\nparallel: {tp: 8"))
    assert job.data.train == "a}\nparallel: {tp: 8"
    assert job.parallel.tp == 2


def test_many_variables_cannot_fill_the_memory() -> None:
    reading = read(DEMO.replace("120", "${A}" * 100_000), A="x" * 10_000)
    assert messages(reading) == ["training.steps: a value of more than 16384 characters came"]
    assert messages(read(DEMO.replace("120", "${A}${A}"), A="x" * 10_000)) == messages(reading)


def test_no_other_variable_is_shown() -> None:
    reading = read(DEMO.replace("120", "${STEPS}"), STEPS="x" * 500, TOKEN="secret")
    report = "\n".join(map(str, reading.faults))
    assert '"' + "x" * 80 + '…" came from ${STEPS}' in report
    assert "x" * 81 not in report
    assert "secret" not in report


def test_an_option_overrides_the_file_and_the_last_of_two_wins() -> None:
    job = job_of(read(DEMO, "training.steps=50", "training.steps=60", "run.dir=/tmp/a=b"))
    assert (job.training.steps, job.run.dir) == (60, "/tmp/a=b")


def test_an_option_replaces_a_section() -> None:
    assert asdict(job_of(read(DEMO, "parallel={dp: 4}")).parallel) == {
        "dp": 4,
        "pp": "auto",
        "tp": "auto",
        "sequence_parallel": "auto",
        "zero": "auto",
        "offload": "none",
    }


def test_an_option_sets_one_item_of_a_list() -> None:
    assert job_of(read(DEMO, "training.optimizer.betas.0=0.8")).training.optimizer.betas == (0.8, 0.95)


def test_an_option_takes_variables_and_quotes_as_the_file_does() -> None:
    job = job_of(read(DEMO, 'name="007"', "training.steps=${STEPS}", STEPS="9"))
    assert (job.name, job.training.steps) == ("007", 9)


def test_an_option_repairs_a_faulty_value_of_the_file() -> None:
    broken = DEMO.replace("120", "many").replace("pp: 2", "pp:")
    assert len(read(broken).faults) == 2
    job = job_of(read(broken, "training.steps=5", "parallel.pp=1"))
    assert (job.training.steps, job.parallel.pp) == (5, 1)


def test_the_fault_of_an_option_stands_at_that_option() -> None:
    (fault,) = read(DEMO, "training.steps=0").faults
    assert str(fault.place) == "--set training.steps=0"
    assert (fault.path, fault.fix) == ("training.steps", "steps: 1")


def test_all_that_is_right_of_a_faulty_job_is_read() -> None:
    reading = read(DEMO.replace("120", "many").replace("lr: 2e-5", "lr: -1"))
    assert reading.doubtful == {"training.steps", "training.optimizer.lr"}
    assert reading.job is not None
    assert (reading.job.training.steps, reading.job.training.optimizer.lr) == (None, None)
    assert reading.job.training.optimizer.betas == (0.9, 0.95)


def test_rules_still_run_when_a_required_value_is_wrong() -> None:
    broken = DEMO.replace("32", "many").replace("steps: 120", "steps: 5\n  schedule: {warmup_steps: 9}")
    assert messages(read(broken)) == [
        'training.global_batch_size: text "many" came',
        "training.schedule.warmup_steps: warmup_steps=9 is not less than steps=5",
    ]


def test_no_rule_judges_a_value_that_is_wrong_itself() -> None:
    assert messages(read(DEMO.replace("120", "none\n  schedule: {warmup_steps: 9}"))) == [
        'training.steps: text "none" came'
    ]


def test_faults_come_in_the_order_of_their_places() -> None:
    broken = (
        DEMO.replace("demo", "d emo").replace("tp: 2", "tp: 0").replace("128", "0").replace("steps", "stepz")
    )
    lines = [fault.place.line for fault in read(broken).faults if fault.place]
    assert lines == [2, 6, 8, 10]


def test_a_file_of_fifty_megabytes_is_answered_at_once(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    with file.open("wb") as out:
        out.truncate(50 * 2**20)
    start = time.process_time()
    reading = read_job(file, environ={})
    assert time.process_time() - start < 1
    assert messages(reading) == [": more than 1 MiB came: this is no job file"]


@pytest.mark.parametrize(
    "text", ["[" * 2**20, "? " * 2**19, "- " * 2**19, "a: &a [*a]\n" * 90_000, "{" * 2**20]
)
def test_a_file_that_is_all_structure_is_answered_at_once(text: str) -> None:
    start = time.process_time()
    reading = read(text[: 2**20])
    assert time.process_time() - start < 3
    assert reading.faults


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(DEMO)
    (fault,) = read_job(tmp_path / "dmo.yaml", environ={}).faults
    assert (fault.message, fault.fix) == ("there is no such file", f"did you mean {tmp_path}/demo.yaml?")


def test_a_folder_names_the_job_in_it(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(DEMO)
    (fault,) = read_job(tmp_path, environ={}).faults
    assert (fault.message, fault.fix) == ("a folder came, not a job file", f"{tmp_path}/demo.yaml")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    assert messages(read_job(tmp_path / "job.yaml", environ={})) == [": this is no regular file"]


@pytest.mark.parametrize("name", ["a" * 5000, "job\0.yaml", "job.yaml/x"])
def test_a_path_that_cannot_be_is_a_fault(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(DEMO)
    (fault,) = read_job(tmp_path / name, environ={}).faults
    assert "cannot be read" in fault.message or "no such file" in fault.message


@pytest.mark.parametrize(
    "text", ['name: "\\UFFFFFFFF"', "name: \uffff", "%YAML " + "9" * 5000 + ".1\n---\na: 1"]
)
def test_what_pyyaml_does_not_foresee_is_a_fault(text: str) -> None:
    assert messages(read(text)) == [": a character or an escape came that YAML does not have"]


def test_a_long_line_is_cut_around_its_mark() -> None:
    (fault,) = read(DEMO + "monitor: {" + " " * 1000 + "log_every: 0" + " " * 1000 + "}\n").faults
    _, line, mark = str(fault).splitlines()[:3]
    assert len(line) < 120
    assert line[mark.index("^")] == "0"


def test_wide_characters_keep_the_mark_below_its_value() -> None:
    (fault,) = read(DEMO + "launch: {env: {A: 日本, B: 3}}\n").faults
    _, line, mark = str(fault).splitlines()[:3]
    assert mark.index("^") == line.index("3") + len("日本")


def test_nothing_in_a_report_moves_the_terminal() -> None:
    reading = read_job_text(b'na\x1b[2Jme: "\\e[31m"\n', source="a\x1b[1mb.yaml", environ={})
    report = "\n".join(map(str, reading.faults))
    assert report
    assert "\x1b" not in report
