"""Launches of stand-in ranks, and the means to look at what is left of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from partrain.launch.script import HostScript, LaunchScript, Limits, RankCommand
from partrain.run.folder import RunFolder
from partrain.run.process import all_processes

HERE = Path(__file__).parent


def script_of(folder: RunFolder, behaviours: list[str], **limits: float) -> LaunchScript:
    """Ranks that behave as told, by the stand-in program."""
    python = (sys.executable, "-S", str(HERE / "stand_in.py"), str(folder.path))
    ranks = tuple(
        RankCommand(rank, f"dp 0, pp {rank}, tp 0", (*python, behaviour), {"RANK": str(rank)})
        for rank, behaviour in enumerate(behaviours)
    )
    times = Limits(**{"settle_s": 0.3, "grace_s": 0.4, "hang_s": 1.0, **limits})
    host = HostScript("localhost", str(folder.path), "{}", 3, ranks, {}, ("SLURM_",), True, times)
    return LaunchScript((host,))


def processes_of(folder: RunFolder) -> list[int]:
    """Living processes that belong to a run: ranks, their agent and launcher have its path in their words."""
    return [process.pid for process in all_processes() if str(folder.path) in _words_of(process.pid)]


def _words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


class Launched:
    """A launcher as a process of its own, as the command line is."""

    def __init__(self, folder: RunFolder, behaviours: list[str]) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "tests.launch.launcher", str(folder.path), *behaviours]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pids: dict[int, int] = {}

    def event(self, kind: str) -> Any:
        """The next event of that kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind}")

    def ranks(self) -> dict[int, int]:
        """Rank -> process, once all are there and rank 0 has recorded a step."""
        pids = {int(rank): pid for rank, pid in self.event("started")["pids"].items()}
        self.event("recorded")
        return pids

    @property
    def agent(self) -> int:
        children = [found.pid for found in all_processes() if found.parent == self.process.pid]
        assert len(children) == 1
        return children[0]

    def end(self) -> int:
        """Exit code; at most 15 seconds may pass until then."""
        return self.process.wait(timeout=15)


def gone(pids: list[int], *, within_s: float = 5.0) -> bool:
    """Whether none of the processes, and no member of their groups, lives in a while."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        living = [found for found in all_processes() if found.pid in pids or found.group in pids]
        if not living:
            return True
        time.sleep(0.05)
    return False
