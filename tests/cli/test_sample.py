"""`partrain sample`: what it refuses, and real processes on checkpoints whose weights are all zero.

Such a model finds every byte equally likely, control characters too.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partrain.cli.planning import plan_job
from partrain.run.process import all_processes
from tests.checkpoint.made import make
from tests.cli.command import JOB, ROOT, child, job_file, partrain
from tests.cli.run_folders import run_folder
from tests.cli.test_checkpoint import as_saved

BYTES = JOB.replace("synthetic", "builtin:python-source")
UNDER = BYTES.replace("{pp: 2}", "{pp: 2, tp: 2, dp: 2}")
LENGTH = 32
"""Tokens that the job trains on at once."""
REFUSED = Path(__file__).with_name("sample-refusals.txt")

# words of the command -> nothing is read, or what is read cannot be
CASES = (
    '"text"',
    '"text" --run nowhere',
    'demo "text" --checkpoint 7',
    'demo "text" --dir nowhere',
    'synthetic "text"',
    'file "text"',
    'moved "text"',
    'empty "text"',
    'broken "text"',
    'broken "text" --checkpoint 2',
    'strange "text"',
    'other "text"',
    "--json",
    "demo --json",
    "demo '' --json",
    "demo def main --json",
    "demo text --run demo --json",
    "demo text --token-ids 1 --json",
    "demo --token-ids 'a 1' --json",
    "demo --token-ids 256 --json",
    "demo --token-ids '' --json",
    "demo text --temperature -1 --json",
    "demo text --temperature nan --json",
    "demo text --tokens 0 --json",
    "demo text --top-k 0 --json",
)


def saved(runs: Path, name: str, text: str, step: int = 2, *, started: float = 1.0) -> Path:
    """A run of a job, and its checkpoint."""
    path = run_folder(runs, name, started=started)
    return as_saved(path / "checkpoints", plan_job(job_file(path, text), None).plan, step)


def corpus(folder: Path, name: str) -> Path:
    """A token file of a tokenizer."""
    header = {"format": "partrain-tokens", "version": 1, "dtype": "uint16", "num_tokens": 999}
    file = folder / f"{name}.json"
    file.write_text(json.dumps({**header, "vocab_size": 256, "tokenizer": "chars"}))
    file.with_suffix(".bin").write_bytes(bytes(1998))
    return file


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of every kind, in the folder that this process is in."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    for name, source in (("demo", "builtin:python-source"), ("synthetic", "synthetic")):
        saved(folder, name, JOB.replace("synthetic", source))
    for name in ("file", "moved"):
        file = corpus(tmp_path, name)
        saved(folder, name, JOB.replace("synthetic", str(file)))
    file.unlink()
    run_folder(folder, "empty", started=9.0)
    (saved(folder, "broken", BYTES) / "rank-00001.safetensors").unlink()
    manifest = saved(folder, "strange", BYTES) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step":2', '"step":3'))
    make(run_folder(folder, "other", started=1.0) / "checkpoints", 4)
    return folder


def test_what_cannot_be_done_is_refused_with_its_fix(runs: Path, golden: Callable[[Path, str], None]):
    told = []
    for case in CASES:
        found = partrain("sample", *shlex.split(case))
        said = (found.err + found.out).replace(str(runs.parent), "HERE")
        told.append(f"$ partrain sample {case}\n{said.rstrip()}\nexit code {found.code}\n")
        assert found.code in (2, 5)
    golden(REFUSED, "\n".join(told))


def test_the_run_is_the_first_of_two_words_and_the_newest_without(runs: Path):
    """`empty` is the newest: it has no checkpoint, which says whose was looked for."""
    assert "empty has no checkpoint" in partrain("sample", "text").err
    assert "broken is whole" in partrain("sample", "broken", "text").err
    assert "broken is whole" in partrain("sample", "--run", "broken", "text").err
    assert "broken is whole" in partrain("sample", "broken", "--token-ids", "1 2").err


@pytest.mark.torch
def test_a_model_may_say_anything_and_the_terminal_gets_printable_characters(tmp_path: Path):
    saved(tmp_path / "runs", "demo", UNDER)
    options = ("--tokens", "400", "--temperature", "1", "--seed", "3")
    found = child("sample", "demo", "def \x1b", *options, cwd=tmp_path)
    assert found.code == 0, found.err
    assert found.out.startswith("def \\x1b")
    assert [c for c in found.out if not c.isprintable() and c not in "\n\t"] == []
    # 400 draws miss the escape character once in five times: (255 / 256)^400 = 0.21; this seed does not
    assert "\\x1b" in found.out[len("def \\x1b") :]
    assert "step 2 of demo" in found.err
    assert f"longer than the {LENGTH} tokens that the model was trained on" in found.err
    told = child("sample", "--run", "demo", "def \x1b", *options, "--json", cwd=tmp_path)
    document = json.loads(told.out)
    assert (told.code, told.err) == (0, "")
    assert document["prompt"] == [*b"def \x1b"]
    assert document["text"] == bytes(document["tokens"]).decode(errors="replace")
    assert (document["step"], document["precision"], document["context"]) == (2, "fp32", LENGTH)
    shown = found.out.removeprefix("def \\x1b").removesuffix("\n")
    assert shown == "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in document["text"]
    )


@pytest.mark.torch
def test_tokens_go_on_from_tokens_greedily(tmp_path: Path):
    saved(tmp_path / "runs", "demo", JOB)
    found = child("sample", "--token-ids", "7, 8", "--tokens", "3", "--temperature", "0", cwd=tmp_path)
    # of logits that are all 0 the first is taken
    assert (found.code, found.out) == (0, "7 8 0 0 0 \n")


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(
    ("to_sampler", "number", "code"), [(False, signal.SIGINT, 130), (True, signal.SIGKILL, 5)]
)
def test_it_ends_with_its_process_and_its_process_with_it(
    tmp_path: Path, to_sampler: bool, number: signal.Signals, code: int
):
    saved(tmp_path / "runs", "demo", BYTES)
    command = subprocess.Popen(
        (sys.executable, "-m", "partrain", "sample", "text", "--tokens", "1000000"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    assert command.stdout.read(4) == b"text"
    (sampler,) = (process for process in all_processes() if process.parent == command.pid)
    os.kill(sampler.pid if to_sampler else command.pid, number)
    _, errors = command.communicate(timeout=30)
    assert (command.returncode, b"Traceback" in errors) == (code, False)
    assert (b"the process that samples was killed (SIGKILL)" in errors) == to_sampler
    limit = time.monotonic() + 10
    while any(process.pid == sampler.pid for process in all_processes()):
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.torch
def test_weights_that_are_no_numbers_are_told(tmp_path: Path):
    path = saved(tmp_path / "runs", "demo", BYTES)
    for file in path.glob("*.safetensors"):
        file.write_bytes(b"\xff" * file.stat().st_size)  # NaN, in fp32
    found = child("sample", "text", cwd=tmp_path)
    assert found.code == 5
    assert "the model's output is not finite" in found.err
