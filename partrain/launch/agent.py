"""One a host: starts the ranks of a run there, watches them, ends them. Standard library only.

`python -m partrain.launch.agent` reads one line, a HostScript, from standard input, writes events to
standard output, and takes orders from standard input until that ends. When either pipe breaks, the
launcher is gone, and so is the run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from partrain.checkpoint.shelf import checkpoint_name
from partrain.launch.channel import Channel
from partrain.launch.events import Ended, Evaluated, Event, Failed, Noted, Recorded, Started, to_line
from partrain.launch.host import disk_shortage, free_memory_bytes, memory_bytes, num_oom_kills
from partrain.launch.processes import RankProcess, end, end_children, look_at, start_rank
from partrain.launch.script import HostScript
from partrain.launch.verdict import STOP_CODES, STOP_FILE, Host, Progress, RankEnd, judge
from partrain.run.failures import read_failure
from partrain.run.folder import OWNERS_ALONE, RunFolder, write_json, write_whole
from partrain.run.lifeline import adopt_orphans
from partrain.run.metrics import Tail, last_record, record_from
from partrain.run.notices import notice_from
from partrain.run.reading import object_in, read_regular, read_tail
from partrain.run.records import EvaluationRecord, Outcome, Record, StepRecord
from partrain.units import format_bytes

_log = logging.getLogger(__name__)  # to standard error, which is the run's agent.log
_POLL_S = 0.1
_FLUSH_S = 5.0
_LOG_TAIL_BYTES = 4096
_LOST = "the launcher"
_CAUSES = {_LOST: "the launcher went away", STOP_FILE: "stopped"}


class Agent:
    """The watch over one host's ranks."""

    def __init__(self, script: HostScript, channel: Channel) -> None:
        self._script = script
        self._channel = channel
        self._folder = RunFolder(Path(script.folder))
        self._tail: Tail[Record] = Tail(self._folder.metrics, record_from)
        self._notices = Tail(self._folder.notices, notice_from)
        self._began = time.time()
        self._progress = Progress(0, script.steps)
        self._ranks: list[RankProcess] = []
        self._since: dict[str, float] = {}
        self._oom_kills = num_oom_kills()
        self._stop = ""
        self._port: socket.socket | None = None

    def run(self) -> Outcome:
        """Start the ranks, watch them to their end, write down how the run ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        adopt_orphans()
        lifeline, held = os.pipe()
        try:
            outcome = self._start(lifeline) or self._watch()
            if outcome.failure is not None and outcome.state == "failed":
                self._send(Failed(outcome.message, outcome.failure))
        finally:
            left = end(self._ranks, grace_s=self._script.limits.grace_s)
            end_children()
        os.close(held)
        if self._port is not None:
            self._port.close()
        self._forward_records()
        for rank in left:
            _log.warning("rank %d (process %d) could not be ended", rank.command.rank, rank.pid)
        self._write_down(outcome)
        self._send(Ended(outcome))
        self._channel.flush(_FLUSH_S)
        return outcome

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = self._stop or ("SIGINT" if number == signal.SIGINT else "SIGTERM")

    def _start(self, lifeline: int) -> Outcome | None:
        """Start all ranks; an outcome if that cannot be done."""
        try:
            port = self._reserve_port() if self._script.choose_port else None
            env = rank_environment(self._script, os.environ, port=port)
            self._folder.logs.mkdir(parents=True, exist_ok=True)
            self._keep_plan()
            for command in self._script.ranks:
                log = self._folder.log(command.rank)
                self._ranks.append(start_rank(command, env=env, log=log, lifeline=lifeline))
        except OSError as error:
            return Outcome("failed", 4, f"the ranks could not be started: {error}", time.time())
        self._send(Started({rank.command.rank: rank.pid for rank in self._ranks}))
        return None

    def _reserve_port(self) -> int:
        """A free port of this host, kept from everyone but a listener that lets its address be reused.

        torch's store is one. Only Linux keeps it so; elsewhere the port is merely likely to stay free.
        """
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        port = int(self._port.getsockname()[1])
        if sys.platform != "linux":
            self._port.close()
        return port

    def _keep_plan(self) -> None:
        there = read_regular(self._folder.plan)
        if there is None:
            write_whole(self._folder.plan, self._script.plan, mode=OWNERS_ALONE)
        elif there != self._script.plan:
            raise FileExistsError(f"{self._folder.plan} holds another plan")

    def _watch(self) -> Outcome:
        """Wait until the run is over, one way or another; returns how."""
        while True:
            self._take_orders()
            self._forward_records()
            look_at(self._ranks)
            if self._stop and not self._progress.complete and not self._saves():
                return self._interrupted()
            if self._over():
                self._forward_records()  # what was written between the look at the file and at the ranks
                if self._stop and not self._progress.complete:
                    return self._interrupted()
                self._progress = self._progress_in_all()
                ends = [self._end_of(rank) for rank in self._ranks]
                host = Host(self._memory(), disk_shortage(self._folder.path))
                return judge(ends, self._progress, host)

    def _saves(self) -> bool:
        """Whether the ranks, told to stop, may still save and leave; before a step there is nothing to."""
        patience = self._script.limits.save_s if self._stop != _LOST and self._progress.step else 0.0
        if patience and not self._folder.stop.exists():
            self._folder.stop.touch()
        return not self._held("saving", True, patience)

    def _progress_in_all(self) -> Progress:
        """How far the run came over all its launches: this one may have had nothing left to do."""
        codes = [rank.exit_code for rank in self._ranks]
        last = None if any(codes) or None in codes else last_record(self._folder.metrics)
        return Progress(max(self._progress.step, last.step if last else 0), self._script.steps)

    def _take_orders(self) -> None:
        for line in self._channel.exchange(_POLL_S):
            order = object_in(line)
            wanted = str((order or {}).get("stop"))
            if wanted in STOP_CODES:
                self._stop = self._stop or wanted
        if self._folder.stop.exists():
            self._stop = self._stop or STOP_FILE
        if self._channel.lost:
            self._stop = self._stop or _LOST

    def _over(self) -> bool:
        codes = [rank.exit_code for rank in self._ranks]
        if None not in codes:
            return True
        limits = self._script.limits
        failing = any(codes) or any(self._folder.failure(rank.command.rank).exists() for rank in self._ranks)
        settled = self._held("failing", failing, limits.settle_s)
        left = self._held("leaving", 0 in codes, limits.hang_s)
        return settled or left or self._held("done", self._progress.complete, limits.save_s + limits.hang_s)

    def _held(self, what: str, holds: bool, seconds: float) -> bool:
        """Whether a condition has held for so long."""
        if not holds:
            self._since.pop(what, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= seconds

    def _end_of(self, rank: RankProcess) -> RankEnd:
        number = rank.command.rank
        tail = read_tail(self._folder.log(number), _LOG_TAIL_BYTES).decode(errors="replace")
        word = read_failure(self._folder, number)
        return RankEnd(number, rank.command.label, rank.exit_code, rank.exited, word, tail)

    def _memory(self) -> str:
        total, free = memory_bytes(), free_memory_bytes()
        if total is None or free is None:
            return ""
        kills = num_oom_kills() - self._oom_kills
        counted = f", out-of-memory kills on this host since the start: {kills}" if kills > 0 else ""
        return f"free host memory now {format_bytes(min(free, total))} of {format_bytes(total)}{counted}"

    def _interrupted(self) -> Outcome:
        cause = _CAUSES.get(self._stop, f"ended by {self._stop}")
        code = STOP_CODES.get(self._stop, 130)
        saved = self._folder.checkpoints / checkpoint_name(self._progress.step)
        note = "; saved" if saved.is_dir() else ""
        return Outcome("interrupted", code, f"{cause} after {self._progress}{note}", time.time())

    def _forward_records(self) -> None:
        for notice in self._notices.read():
            self._send(Noted(notice))
        while records := self._tail.read():
            # The file has the steps of earlier launches too.
            for record in (record for record in records if record.time >= self._began):
                waits = self._script.evaluates and not isinstance(record, EvaluationRecord)
                self._progress = Progress(record.step, self._script.steps, waits)
                if not self._channel.full:  # the file has them all
                    self._send(Recorded(record) if isinstance(record, StepRecord) else Evaluated(record))

    def _write_down(self, outcome: Outcome) -> None:
        try:
            write_json(self._folder.outcome, asdict(outcome))
        except OSError as error:  # a full disk; the event still tells
            _log.warning("%s: %s", self._folder.outcome, error)

    def _send(self, event: Event) -> None:
        self._channel.send(to_line(event))


def rank_environment(script: HostScript, environ: Mapping[str, str], *, port: int | None) -> dict[str, str]:
    """The environment that all ranks of a host share."""
    kept = {name: value for name, value in environ.items() if not name.startswith(script.drop)}
    return {**kept, **script.env, **({"MASTER_PORT": str(port)} if port else {})}


def main() -> int:
    """Exit code of the run on this host; 4 when there is no request to follow."""
    channel = Channel()
    try:
        script = HostScript.from_json(channel.first_line().decode())
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("the request cannot be read: %r", error)
        return 4
    return Agent(script, channel).run().exit_code


if __name__ == "__main__":
    sys.exit(main())
