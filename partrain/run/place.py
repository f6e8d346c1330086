"""A place for a new run: a folder that is one launcher's alone, and appears whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partrain.run.folder import OWNERS_ALONE, RunFolder, write_whole
from partrain.run.launcher import note_launcher
from partrain.run.runs import RUN_NAME, RunChoiceError


def new_run_folder(
    run_dir: Path,
    name: str,
    *,
    job: str | None = None,
    plan: str | None = None,
    over_budget: bool = False,
) -> RunFolder:
    """A new folder for a run of `name`: NAME, or the first of NAME-2, NAME-3 and so on that is free.

    It is this process's alone, however many launch at once, and appears with all that is in it at first.
    Raises RunChoiceError if it cannot be made.
    """
    if not RUN_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a run")
    hidden = RunFolder(run_dir / f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with _signals_later():
            try:
                hidden.logs.mkdir(parents=True)
                note_launcher(hidden, over_budget=over_budget)
                _fill(hidden, job=job, plan=plan)
                return RunFolder(next(path for path in _places(run_dir, name) if _moved(hidden.path, path)))
            except BaseException:
                shutil.rmtree(hidden.path, ignore_errors=True)
                raise
    except OSError as error:
        message = f"no run can be kept in {run_dir}: {error.strerror or error}"
        raise RunChoiceError(message, hint="run: {dir: ...} in the job") from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """What would end this process waits until the block is left, so that nothing is left half made."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fill(folder: RunFolder, *, job: str | None, plan: str | None) -> None:
    if job is not None:
        write_whole(folder.job, job, mode=OWNERS_ALONE)
    if plan is not None:
        write_whole(folder.plan, plan, mode=OWNERS_ALONE)


def _places(run_dir: Path, name: str) -> Iterator[Path]:
    yield run_dir / name
    number = 2
    while True:
        yield run_dir / f"{name}-{number}"
        number += 1


def _moved(folder: Path, place: Path) -> bool:
    """Whether `folder` could be moved to `place`: not where there is a file, or a folder with files."""
    try:
        folder.rename(place)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True
