"""A process ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from partrain.run.lifeline import LIFELINE, dying_with

TIED = f"""
import os, time
from partrain.run.lifeline import tie_to_parent
tie_to_parent()
print("ready {LIFELINE}", flush=True)
time.sleep(60)
"""


def test_a_process_ends_when_its_lifeline_does():
    end, held = os.pipe()
    environment = {**os.environ, LIFELINE: str(end)}
    command = [sys.executable, "-S", "-c", TIED]
    with subprocess.Popen(
        command, env=environment, pass_fds=(end,), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        os.close(end)
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        os.close(held)
        assert process.wait(timeout=5) == -9


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_a_process_whose_starter_has_ended_before_the_promise_does_not_start():
    nobody = os.getpid() + 1
    command = [sys.executable, "-S", "-c", "print('here')"]
    found = subprocess.run(command, preexec_fn=dying_with(nobody), capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (1, b"")
