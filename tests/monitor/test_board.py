"""TensorBoard as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

from partrain.errors import RunError
from partrain.monitor.board import end_board, free_port, start_board, tunnel, wait_for_answer
from partrain.run.folder import RunFolder
from partrain.run.process import process_state
from tests.cli.command import ROOT
from tests.cli.run_folders import run_folder
from tests.launch.launched import gone

QUIET_PORT = 46006


def test_a_port_that_is_taken_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) > port


def test_no_tunnel_without_ssh():
    assert tunnel(6006, {"USER": "ada"}) is None


def test_a_tunnel_goes_through_the_port_that_ssh_came_by():
    environ = {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.2 2222", "USER": "ada"}
    assert tunnel(6007, environ) == "ssh -L 6007:127.0.0.1:6007 -p 2222 ada@10.0.0.2"


def test_a_board_that_ends_at_once_says_why(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("no such option\n")
    process = subprocess.Popen((sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(RunError, match=r"ended with exit code 3\nno such option"):
        wait_for_answer(process, port=1, log=log)


def test_a_missing_tensorboard_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"partrain\[train\]"):
        start_board(tmp_path, port=1, log=tmp_path / "log")


@pytest.mark.torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_board_answers_says_the_tunnel_and_ends_with_the_command(tmp_path: Path, number: int, code: int):
    run_folder(tmp_path, "demo")
    port = free_port(QUIET_PORT)
    environ = {**os.environ, "SSH_CONNECTION": "10.0.0.9 50000 10.0.0.2 22", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "partrain", "board", "demo", "--dir", str(tmp_path), "--port", str(port))
    board = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    assert board.stdout is not None
    said = ""
    while "Ctrl-C" not in said:
        line = board.stdout.readline()
        assert line, said
        said += line
    address = re.search(r"http://\S+", said)
    assert address is not None
    with urllib.request.urlopen(address[0]) as page:
        assert b"TensorBoard" in page.read()
    assert f"ssh -L {port}:127.0.0.1:{port} " in said
    board.send_signal(number)
    assert board.wait(timeout=30) == code
    board.stdout.close()
    with pytest.raises(OSError, match=r".*"):
        urllib.request.urlopen(address[0], timeout=5)


STANDS_IN = """
import os, subprocess, sys, time
child = subprocess.Popen((sys.executable, "-S", "-c", "import time; time.sleep(600)"))
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in the place of TensorBoard: it starts a process, as TensorBoard does, and stays."""
    package = tmp_path / "packages" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(STANDS_IN)
    for path in (str(ROOT), str(package.parent)):
        monkeypatch.setenv("PYTHONPATH", path, prepend=os.pathsep)
    monkeypatch.syspath_prepend(package.parent)


def started_by_board(log: Path) -> list[int]:
    """The board and what it started, once both are there."""
    deadline = time.monotonic() + 10
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [int(word) for word in log.read_text().split()]


@pytest.mark.usefixtures("stand_in")
def test_what_the_board_started_ends_with_it(tmp_path: Path):
    log = tmp_path / "log"
    process = start_board(tmp_path, port=1, log=log)
    pids = started_by_board(log)
    end_board(process)
    assert gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.usefixtures("stand_in")
def test_a_board_does_not_outlive_a_command_that_is_killed(tmp_path: Path):
    log = tmp_path / "log"
    code = "import sys, time; from pathlib import Path; from partrain.monitor.board import start_board; "
    code += "start_board(Path(sys.argv[1]), port=1, log=Path(sys.argv[1], 'log')); time.sleep(600)"
    with subprocess.Popen((sys.executable, "-c", code, str(tmp_path))) as command:
        board, child = started_by_board(log)
        command.kill()
    try:
        assert process_ends(board)
    finally:
        os.kill(child, signal.SIGKILL)  # TensorBoard's own child ends with its standard input


def process_ends(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while process_state(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return process_state(pid) is None


@pytest.mark.usefixtures("stand_in")
def test_a_module_of_the_working_directory_is_not_the_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("runpy", "subprocess", "tensorboard"):
        (here / f"{name}.py").write_text("raise SystemExit('taken from the working directory')")
    monkeypatch.chdir(here)
    log = tmp_path / "log"
    process = start_board(tmp_path, port=1, log=log)
    pids = started_by_board(log)
    end_board(process)
    assert gone(pids)


@pytest.mark.torch
def test_the_board_serves_every_step_of_a_run(tmp_path: Path):
    """Written by the recorder of the engine, asked for as the page asks."""
    import torch

    from partrain.engine.guard import StepResult
    from partrain.engine.metrics import Recorder
    from partrain.engine.peak_memory import PeakMemory, Peaks
    from tests.engine.plans import Case, plan_of

    folder = RunFolder(tmp_path / "demo")
    folder.path.mkdir()
    folder.job.write_text("version: 1\n")
    plan = plan_of(Case())
    recorder = Recorder(plan, folder, 0, PeakMemory(plan, rank=0, device=torch.device("cpu")))
    peaks = Peaks(2**20, (2**20,), (2**20,))
    for step in range(1, 1501):
        recorder.record(step, StepResult(1 / step, 1.0), lr=1e-3, step_s=0.5, peaks=peaks)
    recorder.close()
    port, log = free_port(QUIET_PORT), tmp_path / "log"
    process = start_board(folder.tensorboard, port=port, log=log)
    try:
        address = wait_for_answer(process, port=port, log=log)
        points = _points(f"{address}data/plugin/scalars/scalars?run=demo&tag=loss/train", 1500)
        sizes = "memory of stage 0/fullest_rank_bytes"
        most = _points(f"{address}data/plugin/scalars/scalars?run=demo&tag={quote(sizes)}", 1500)
    finally:
        end_board(process)
    assert [step for _, step, _ in points] == list(range(1, 1501))
    assert {value for _, _, value in most} == {2**20}


def _points(url: str, wanted: int) -> list[list[float]]:
    """The points, once the data server has read them all."""
    deadline, points = time.monotonic() + 30, []
    while len(points) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(url) as answer:
                points = json.load(answer)
        except urllib.error.HTTPError:
            continue  # the run is not read yet
    return points
