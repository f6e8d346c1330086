"""A place for a new run."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partrain.run.launcher import read_launcher
from partrain.run.place import new_run_folder
from partrain.run.runs import RunChoiceError, list_runs


def test_the_folder_of_a_run_is_one_launchers_alone(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_run_folder(tmp_path, "demo").path.name, range(8)))
    assert sorted(made) == sorted(["demo", *(f"demo-{number}" for number in range(2, 9))])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(made)


def test_nothing_that_has_the_name_is_replaced(tmp_path):
    (tmp_path / "demo").write_text("a file")
    (tmp_path / "demo-2").symlink_to(tmp_path / "nowhere")
    (tmp_path / "demo-3").mkdir()
    (tmp_path / "demo-3" / "mine").write_text("kept")
    assert new_run_folder(tmp_path, "demo").path.name == "demo-4"
    assert (tmp_path / "demo").read_text() == "a file"
    assert (tmp_path / "demo-3" / "mine").read_text() == "kept"


def test_it_is_written_down_that_a_run_is_over_budget(tmp_path):
    for over_budget in (False, True):
        launcher = read_launcher(new_run_folder(tmp_path, "demo", over_budget=over_budget))
        assert launcher is not None
        assert launcher.over_budget is over_budget


def test_job_and_plan_are_their_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        folder = new_run_folder(tmp_path, "demo", job="name: demo\n", plan='{"env": {"TOKEN": "secret"}}')
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (folder.job, folder.plan, folder.launch)]
    assert modes == [0o600, 0o600, 0o666]


@pytest.mark.parametrize("place", ["file", "file/runs", "/proc/runs", "/dev/null"])
def test_a_place_that_cannot_hold_runs_is_a_fault_of_the_job(tmp_path, place):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(RunChoiceError, match="no run can be kept in") as caught:
        new_run_folder(tmp_path / place, "demo")
    assert caught.value.exit_code == 2
    assert "run: {dir: ...}" in caught.value.hint


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    """A limit on the size of files stands for a full disk: both end a write with an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(RunChoiceError, match="no run can be kept"):
            new_run_folder(tmp_path, "demo", plan="x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


MAKES_RUNS = """
import sys
from pathlib import Path
from partrain.run.place import new_run_folder
print("ready", flush=True)
while True:
    new_run_folder(Path(sys.argv[1]), "demo", job="job", plan="{}")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_ended_while_it_makes_a_run_leaves_it_whole_or_not_at_all(tmp_path, number):
    command = [sys.executable, "-c", MAKES_RUNS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while len(list(tmp_path.iterdir())) < 3:
            pass
        process.send_signal(number)
        process.wait(timeout=10)
    assert process.returncode in (-number, 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {info.name for info in list_runs(tmp_path)}
    files = [sorted(path.name for path in Path(tmp_path, name).iterdir()) for name in names]
    assert all(found == ["job.yaml", "launch.json", "logs", "plan.json"] for found in files)
