"""launch.json: the process that launched a run, so that others can tell whether it is still there."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

from partrain.run.folder import RunFolder, write_json
from partrain.run.process import host_mark, process_state
from partrain.run.reading import known_keys, read_object
from partrain.run.records import Timestamp
from partrain.spec.values import read


@dataclass(frozen=True)
class Launcher:
    """A launching process."""

    pid: int
    start: str
    """When the process started, in its host's own words."""
    host: str
    boot: str
    """The host's boot; a pid is of one boot."""
    started: Timestamp
    """When the run started."""
    over_budget: bool = False
    """Whether it was started though the estimate said that it does not fit."""


def note_launcher(folder: RunFolder, *, over_budget: bool = False) -> None:
    """Write down that this process launches the run, unless it has done so."""
    there = read_launcher(folder)
    if there is not None and there.pid == os.getpid() and is_alive(there):
        return
    host, boot = host_mark()
    itself = process_state(os.getpid())
    start = itself.start if itself else ""
    itself_now = Launcher(os.getpid(), start, host, boot, time.time(), over_budget)
    write_json(folder.launch, asdict(itself_now))


def read_launcher(folder: RunFolder) -> Launcher | None:
    """Who launched the run; None: nobody has said so, or not in a way that can be read."""
    try:
        return read(Launcher, known_keys(Launcher, read_object(folder.launch)))
    except ValueError:
        return None


def is_alive(launcher: Launcher) -> bool | None:
    """Whether that very process still runs; None: it is another host's and cannot be seen from here."""
    host, boot = host_mark()
    if launcher.host != host:
        return None
    found = process_state(launcher.pid) if launcher.boot == boot else None
    return found is not None and found.start == launcher.start
