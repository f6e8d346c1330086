"""The ranks of one host as processes: started, looked at, ended with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from partrain.launch.script import RankCommand
from partrain.run.lifeline import LIFELINE, dying_with
from partrain.run.process import all_processes, group_lives

_POLL_S = 0.05
_LAST_WAIT_S = 5.0


@dataclass
class RankProcess:
    """A rank that was started. Until `reap` its pid cannot become another process's."""

    command: RankCommand
    process: subprocess.Popen[bytes]
    exit_code: int | None = None
    """Negative: the signal that killed it; None: it runs."""
    exited: float = 0.0
    """Seconds since 1970."""

    @property
    def pid(self) -> int:
        return self.process.pid


def start_rank(command: RankCommand, *, env: Mapping[str, str], log: Path, lifeline: int) -> RankProcess:
    """Start one rank in a session of its own, its output in a new file `log`.

    `lifeline` is the pipe that ends with this process, for systems whose kernel does not tie the two.
    Raises OSError.
    """
    tie = dying_with(os.getpid())
    tied = {} if tie else {LIFELINE: str(lifeline)}
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    try:
        process = subprocess.Popen(
            command.argv,
            env={**env, **command.env, **tied},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=tie,  # safe: the agent has one thread
            pass_fds=() if tie else (lifeline,),
        )
    finally:
        os.close(output)
    return RankProcess(command, process)


def look_at(ranks: Iterable[RankProcess]) -> None:
    """Note the ranks that have ended since the last look."""
    for rank in ranks:
        if rank.exit_code is None:
            rank.exit_code = _exit_code(rank.process)
            rank.exited = time.time() if rank.exit_code is not None else 0.0


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll()
    # WNOWAIT leaves the zombie, so that its number stays ours until the whole group is ended.
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def end(ranks: Sequence[RankProcess], *, grace_s: float) -> tuple[RankProcess, ...]:
    """End the ranks and all they started: SIGTERM, then SIGKILL. Returns those that would not go."""
    look_at(ranks)
    for rank in ranks:
        if rank.exit_code is None:
            _signal(rank.pid, signal.SIGTERM)
    _wait(ranks, grace_s)
    for rank in ranks:
        _signal(rank.pid, signal.SIGKILL)
    left = _wait(ranks, _LAST_WAIT_S)
    for rank in ranks:
        if rank.exit_code is not None:
            rank.process.wait()
    return left


def _wait(ranks: Sequence[RankProcess], seconds: float) -> tuple[RankProcess, ...]:
    """Wait for the ranks to end; returns those that did not in time."""
    deadline = time.monotonic() + seconds
    while True:
        look_at(ranks)
        left = tuple(rank for rank in ranks if rank.exit_code is None)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def children() -> frozenset[int]:
    """The living children of this process; Linux only, elsewhere empty."""
    return frozenset(process.pid for process in all_processes() if process.parent == os.getpid())


def end_children(*, spare: frozenset[int] = frozenset()) -> None:
    """Kill the children of this process but those to `spare`, until none is left; it adopts theirs.

    What ranks start in sessions of its own is ended by this, once their parents are gone. Only for a
    process that adopts orphans and whose other children belong to the run.
    """
    deadline = time.monotonic() + _LAST_WAIT_S
    while (left := children() - spare) and time.monotonic() < deadline:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def kill_groups(groups: Iterable[int], *, wait_s: float = _LAST_WAIT_S) -> None:
    """Kill process groups by number, and wait until nothing of them lives."""
    groups = tuple(groups)
    for group in groups:
        _signal(group, signal.SIGKILL)
    deadline = time.monotonic() + wait_s
    while any(group_lives(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(
        ProcessLookupError, PermissionError
    ):  # gone already; macOS says EPERM of a group of zombies
        os.killpg(group, number)
