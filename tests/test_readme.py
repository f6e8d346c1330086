"""README as a newcomer types it: every command, in its order, in an empty folder."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# command -> what must stand in its output
SESSION = {
    "partrain init job.yaml": "job.yaml",
    "partrain check job.yaml": "ok: ",
    "partrain check": "torch",
    "partrain estimate job.yaml": "fits: ",
    "partrain plan job.yaml": "rank",
    "partrain launch job.yaml --dry-run": "nothing was started",
    "partrain launch job.yaml": "done",
    "partrain launch job.yaml --new --set training.seed=2": "3/3",
    "partrain runs": "done",
    "partrain status": "done",
    "partrain logs --rank 1": "rank 1",
    'partrain sample "def main("': "step 3 of ",
    "partrain schema": "$schema",
    "partrain board": "http://127.0.0.1:",
}
SERVERS = {"partrain board"}


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", *shlex.split(command)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.Popen(
        argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def output_of_server(process: subprocess.Popen[str], wanted: str) -> str:
    """What it printed up to `wanted`, after Ctrl-C."""
    assert process.stdout is not None
    text, limit = "", time.monotonic() + 60
    while wanted not in text and time.monotonic() < limit and process.poll() is None:
        text += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 130, text + rest
    return text + rest


@pytest.mark.torch
def test_every_command_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    for command, wanted in SESSION.items():
        process = start(command, tmp_path)
        if command in SERVERS:
            output = output_of_server(process, wanted)
        else:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
        assert wanted in output, (command, output)
        if command == "partrain init job.yaml":
            shorten(tmp_path / "job.yaml")
    records = (tmp_path / "runs").glob("*/metrics.jsonl")
    lines = ([json.loads(line) for line in file.read_text().splitlines()] for file in records)
    steps = sorted([line["step"] for line in found if "loss" in line] for found in lines)
    assert steps == [[1, 2, 3], [1, 2, 3]]


def shorten(job: Path) -> None:
    """Three steps, where the template trains for minutes."""
    text = job.read_text()
    for name, long, short in (("steps", 300, 3), ("warmup_steps", 20, 0)):
        assert f"{name}: {long}" in text
        text = text.replace(f"{name}: {long}", f"{name}: {short}")
    job.write_text(text)


@pytest.mark.torch
def test_make_demo_trains(tmp_path: Path) -> None:
    options = "--set training.steps=2 --set training.schedule.warmup_steps=0 --set run.dir=" + str(tmp_path)
    made = subprocess.run(
        ["make", "demo", f"DEMO={options}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "2/2" in made.stdout
    assert "partrain board" in made.stdout
    assert list(tmp_path.glob("demo/tensorboard/demo/events*"))
