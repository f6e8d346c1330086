"""No process of a run outlives the one that started it, not even by kill -9 of that one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

LIFELINE = "PARTRAIN_LIFELINE"
"""Environment variable with the number of an inherited pipe that ends when the starter dies."""

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def dying_with(parent: int) -> Callable[[], None] | None:
    """What a child of `parent` calls between fork and exec, so that the kernel kills it when `parent` ends.

    None where the system has no such promise; there the child watches a pipe (`tie_to_parent`). The parent
    must have one thread only: the promise is tied to the thread that forked.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the promise was made
            os._exit(1)

    return tie


def adopt_orphans() -> None:
    """From now on descendants whose parent ends become this process's children (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tie_to_parent(pipe_fd: int | None = None) -> None:
    """Kill this process and its group when the pipe `pipe_fd` ends; called first thing in a worker.

    Without a number it is the one in the environment; without that there is nothing to do: the kernel
    has made the promise (`dying_with`), or nobody started this process.
    """
    number = os.environ.get(LIFELINE, "") if pipe_fd is None else str(pipe_fd)
    if number.isdigit():
        threading.Thread(target=_end_with, args=(int(number),), name="lifeline", daemon=True).start()


def _end_with(pipe_fd: int) -> None:
    while os.read(pipe_fd, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
