"""A run that goes on: what the launch before left is put aside, and no two launches take it at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partrain.run.folder import RunFolder
from partrain.run.launcher import note_launcher, read_launcher
from partrain.run.runs import RunChoiceError, read_outcome, state_of

_LOCK = ".lock"


def past_attempts(folder: RunFolder) -> tuple[Path, ...]:
    """What earlier launches left, the first one first."""
    names = [path for path in folder.attempts.glob("*") if path.name.isdecimal()]
    return tuple(sorted(names, key=lambda path: int(path.name)))


def num_failures(folder: RunFolder) -> int:
    """Earlier launches that failed or were lost without a word."""
    outcomes = (read_outcome(RunFolder(path)) for path in past_attempts(folder))
    return sum(outcome is None or outcome.state == "failed" for outcome in outcomes)


def first_start(folder: RunFolder) -> float | None:
    """When the run was first launched, in seconds since 1970; None: nobody knows."""
    for path in (*past_attempts(folder), folder.path):
        launcher = read_launcher(RunFolder(path))
        if launcher is not None:
            return launcher.started
    return None


def take_over(folder: RunFolder, *, over_budget: bool = False) -> Path:
    """Make a run that is over this process's; returns the folder with what the launch before left.

    `over_budget`: it goes on though the estimate says that it does not fit.

    Raises RunChoiceError where it still runs, or another launch has just taken it.
    """
    with _locked(folder.path):
        if state_of(folder) in ("running", "unknown"):
            raise RunChoiceError(
                f"{folder.path} has just been launched by another process", hint="wait, or --new"
            )
        number = len(past_attempts(folder)) + 1
        place = folder.attempts / str(number)
        place.mkdir(parents=True)
        for path in (folder.launch, folder.outcome, folder.notices, folder.logs, folder.exported):
            with suppress(FileNotFoundError):
                path.rename(place / path.name)
        for path in (folder.stop, folder.save):
            path.unlink(missing_ok=True)
        note_launcher(folder, over_budget=over_budget)
        folder.logs.mkdir(exist_ok=True)
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process that holds it."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
