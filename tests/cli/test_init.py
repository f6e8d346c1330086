"""`partrain init`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from partrain.cli import templates
from tests.cli.command import ROOT, child, partrain


@pytest.mark.parametrize("name", templates.NAMES)
def test_the_written_job_passes_check(name: str, tmp_path: Path):
    job = tmp_path / "first.yaml"
    assert partrain("init", str(job), "--template", name, "--name", "my.first-1", "--steps", "7").code == 0
    checked = json.loads(partrain("check", str(job), "--json").out)
    assert (checked["job"]["name"], checked["job"]["training"]["steps"]) == ("my.first-1", 7)


def test_every_line_of_a_filled_template_keeps_its_comment(tmp_path: Path):
    job = tmp_path / "job.yaml"
    partrain("init", str(job), "--name", "a-rather-long-name-for-such-a-small-job", "--preset", "tiny-gpt")
    lines = job.read_text().splitlines()
    assert (
        "name: a-rather-long-name-for-such-a-small-job # its runs are kept in runs/ under this name" in lines
    )
    assert [line.count("#") for line in lines] == [
        line.count("#") for line in templates.template("laptop").splitlines()
    ]


def test_sequences_are_cut_to_the_models_positions(tmp_path: Path):
    job = tmp_path / "job.yaml"
    assert partrain("init", str(job), "--template", "one-node", "--preset", "tiny").code == 0
    assert json.loads(partrain("check", str(job), "--json").out)["job"]["training"]["sequence_length"] == 1024


def test_the_first_line_names_the_schema_beside_the_job(tmp_path: Path):
    job = tmp_path / "job.yaml"
    partrain("init", str(job))
    first = job.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = json.loads((tmp_path / first.partition("=")[2]).read_text())
    assert schema["title"] == "partrain job"
    assert schema == json.loads(partrain("schema").out)


def test_a_second_job_shares_the_schema(tmp_path: Path):
    assert partrain("init", str(tmp_path / "one.yaml")).code == 0
    assert partrain("init", str(tmp_path / "two.yaml")).code == 0


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("mine")
    shown = partrain("init", str(job))
    assert (shown.code, job.read_text()) == (2, "mine")
    assert "nothing is overwritten" in shown.err


def test_a_schema_of_someone_else_is_left_alone(tmp_path: Path):
    schema = tmp_path / "partrain.schema.json"
    schema.write_text("{}")
    shown = partrain("init", str(tmp_path / "job.yaml"))
    assert shown.code != 0
    assert schema.read_text() == "{}"
    assert not (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize(
    "options", [["--name", "not a name"], ["--preset", "lama"], ["--steps", "0"], ["--template", "moon"]]
)
def test_a_wrong_value_is_told_and_nothing_is_written(options: list[str], tmp_path: Path):
    shown = partrain("init", str(tmp_path / "job.yaml"), *options)
    assert shown.code == 2
    assert options[1] in shown.err
    assert list(tmp_path.iterdir()) == []


def test_the_schema_can_be_left_out(tmp_path: Path):
    assert partrain("init", str(tmp_path / "job.yaml"), "--no-schema").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_it_works_from_an_installed_package(tmp_path: Path):
    # A wheel holds the templates inside the package (pyproject.toml, force-include).
    site = tmp_path / "site"
    shutil.copytree(ROOT / "partrain", site / "partrain", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "templates", site / "partrain" / "templates")
    shown = child(
        "init", "job.yaml", "--template", "cluster", cwd=tmp_path, environ={"PYTHONPATH": str(site)}
    )
    assert shown.code == 0, shown.err
    assert "preset: llama-3.1-70b" in (tmp_path / "job.yaml").read_text()


def test_a_fault_of_an_option_points_into_no_file(tmp_path: Path):
    shown = partrain("init", str(tmp_path / "job.yaml"), "--preset", "lama")
    assert shown.err.startswith("model.preset: ")
    assert "job.yaml" not in shown.err


def test_the_commands_it_names_can_be_pasted(tmp_path: Path):
    shown = partrain("init", str(tmp_path / "my job.yaml"))
    assert f"partrain check '{tmp_path}/my job.yaml'" in shown.out


@pytest.mark.parametrize("name", templates.NAMES)
def test_no_comment_has_a_number_that_its_value_could_belie(name: str, tmp_path: Path):
    lines = templates.template(name).splitlines()
    replaced = [line for line in lines if line.split(":")[0].strip() in ("preset", "steps", "name")]
    assert not any(character.isdigit() for line in replaced for character in line.partition("#")[2])


def at_terminal(command: str, answers: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`python -m partrain` at a terminal that `script` gives it; the answers come by its standard input."""
    return subprocess.run(
        ["script", "-qec", f"{sys.executable} -m partrain {command}", "/dev/null"],
        input=answers,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "xterm"},
        capture_output=True,
        text=True,
        check=False,
    )


needs_script = pytest.mark.skipif(sys.platform != "linux", reason="macOS' script takes other options")


@needs_script
def test_a_terminal_is_asked_for_what_no_option_gives(tmp_path: Path):
    found = at_terminal("init job.yaml --steps 9", "one-node\nasked\n\n", tmp_path)
    assert found.returncode == 0, found.stdout
    assert "Name of the job [my-job]" in found.stdout
    assert answers_in(tmp_path) == ["asked", "llama-3.2-1b", "9"]


def answers_in(folder: Path) -> list[str]:
    text = (folder / "job.yaml").read_text()
    return [templates.value_of(text, key) for key in ("name", "preset", "steps")]


@needs_script
def test_a_wrong_answer_is_told_and_asked_for_again(tmp_path: Path):
    answers = ["moon", "laptop", "no name", "mine", "lama", "tiny-gpt", "abc", "0", "30"]
    found = at_terminal("init job.yaml", "".join(f"{answer}\n" for answer in answers), tmp_path)
    assert found.returncode == 0, found.stdout
    assert "no template is called moon" in found.stdout
    assert "training.steps" in found.stdout
    assert "Traceback" not in found.stdout
    assert answers_in(tmp_path) == ["mine", "tiny-gpt", "30"]


@needs_script
def test_ctrl_c_at_a_question_is_exit_code_130(tmp_path: Path):
    command = ["script", "-qec", f"{sys.executable} -m partrain init job.yaml", "/dev/null"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        said = b""
        while b"[laptop]: " not in said:
            said += asking.stdout.read(1)
        # Between the prompt and its select() Python's readline misses a signal, until the next one.
        for _ in range(30):
            asking.stdin.write(b"\x03")
            with suppress(subprocess.TimeoutExpired):
                asking.wait(timeout=1)
                break
        assert asking.returncode == 130
    assert list(tmp_path.iterdir()) == []
