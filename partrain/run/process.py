"""Processes as the system knows them: which are there, since when, whose children they are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class ProcessState:
    """A process that has not ended; a zombie has."""

    pid: int
    parent: int
    group: int
    start: str
    """When it started, in the system's own words: with the pid it names a process once and for all."""


def process_state(pid: int) -> ProcessState | None:
    """The living process `pid`; None: there is none."""
    if pid <= 0:
        return None
    return _from_proc(pid) if _LINUX else _from_ps(pid)


def _from_proc(pid: int) -> ProcessState | None:
    try:
        # The name in brackets may hold blanks and brackets; what follows the last one has no blanks in it.
        rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, group, start = rest[0], rest[1], rest[2], rest[19]
    return None if state in "ZX" else ProcessState(pid, int(parent), int(group), start)


def _from_ps(pid: int) -> ProcessState | None:
    command = ["ps", "-o", "state=,ppid=,pgid=,lstart=", "-p", str(pid)]
    found = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    words = found.stdout.split()
    if len(words) < 4 or words[0].startswith("Z"):
        return None
    return ProcessState(pid, int(words[1]), int(words[2]), " ".join(words[3:]))


def all_processes() -> tuple[ProcessState, ...]:
    """Every living process that can be seen; Linux only, elsewhere empty."""
    if not _LINUX:
        return ()
    found = (_from_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return tuple(process for process in found if process is not None)


def group_lives(group: int) -> bool:
    """Whether any process of the process group has not ended."""
    if _LINUX:
        return any(process.group == group for process in all_processes())
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def host_mark() -> tuple[str, str]:
    """Name of this host, and of its boot where the system tells it: pids mean nothing outside the two."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot
