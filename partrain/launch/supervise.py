"""Starts a run's agent, hands on what it tells, and leaves nothing running when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from partrain.errors import LaunchError
from partrain.launch.events import Ended, Event, Started, Stopping, from_line
from partrain.launch.processes import children, end_children, kill_groups
from partrain.launch.script import LaunchScript
from partrain.launch.verdict import STOP_CODES, signal_words
from partrain.run.folder import RunFolder, write_json
from partrain.run.launcher import note_launcher
from partrain.run.lifeline import adopt_orphans
from partrain.run.module import module_command
from partrain.run.reading import read_tail
from partrain.run.records import Outcome
from partrain.run.runs import read_outcome

_AGENT = module_command("partrain.launch.agent")
_POLL_S = 0.2
_STOP_S = 10.0
_CHUNK_BYTES = 2**16

OnEvent = Callable[[Event], None]


def supervise(script: LaunchScript, folder: RunFolder, *, on_event: OnEvent) -> Outcome:
    """Run `script` to its end, telling `on_event` what happens; returns how it ended.

    SIGINT and SIGTERM of this process end the run (exit code 130, 143), a second one at once. Called outside
    the main thread it leaves signals alone. An exception of `on_event` ends the run and is passed on.
    Raises LaunchError if the agent cannot be started.
    """
    adopt_orphans()  # if the agent is killed, what it had started comes to this process
    others = children()
    early: list[int] = []
    with _signals(lambda number, frame: early.append(number)):
        watch = _Watch(_start_agent(folder), others, script.hosts[0].limits.save_s)
        with _signals(watch.on_signal):
            for number in early:
                watch.on_signal(number)
            _follow(watch, script, on_event)
    return watch.outcome or _write_down(folder, _outcome_without(watch, folder))


def _follow(watch: _Watch, script: LaunchScript, on_event: OnEvent) -> None:
    try:
        watch.ask(script.hosts[0].to_json())
        while (events := watch.next_events()) is not None:
            for event in events:
                on_event(event)
    finally:
        watch.end()


@dataclass
class _Watch:
    """One agent, and what is known of its ranks."""

    agent: subprocess.Popen[bytes]
    others: frozenset[int]
    """Children of this process that are not the run's."""
    save_s: float
    """How long the ranks may take to save when told to stop."""
    groups: tuple[int, ...] = ()
    outcome: Outcome | None = None
    stop: str = ""
    """Name of the signal that asked for the end."""
    _deadline: float = float("inf")
    _asked: bool = False
    _told: bool = False
    _inbox: bytes = b""

    def ask(self, request: str) -> None:
        """Hand the agent its task."""
        self._write(request)
        self._asked = True
        if self.stop:  # the signal came while the request was being written
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._write(f'{{"stop": "{self.stop}"}}')

    def _write(self, line: str) -> None:
        # Unbuffered: a signal handler writes too. An agent that is gone is noticed by its silence.
        assert self.agent.stdin is not None
        rest = line.encode() + b"\n"
        with suppress(OSError, ValueError):
            while rest:
                rest = rest[os.write(self.agent.stdin.fileno(), rest) :]

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        """Ask the agent to stop; the second time kill all there is."""
        if self.stop:
            self._deadline = 0.0
            self._kill()
            return
        self.stop = signal.Signals(number).name
        self._deadline = time.monotonic() + self.save_s + _STOP_S
        if self._asked:
            self._ask_to_stop()

    def next_events(self) -> tuple[Event, ...] | None:
        """What the agent has told since; None when it has gone silent for good, or is late in stopping."""
        if time.monotonic() > self._deadline:
            return None
        if self.stop and not self._told:
            self._told = True
            return (Stopping(self.stop),)
        return self._read()

    def _read(self) -> tuple[Event, ...] | None:
        assert self.agent.stdout is not None
        pipe = self.agent.stdout.fileno()
        if not select.select([pipe], [], [], _POLL_S)[0]:
            return ()
        chunk = os.read(pipe, _CHUNK_BYTES)
        if not chunk:
            return None
        *lines, self._inbox = (self._inbox + chunk).split(b"\n")
        events = tuple(event for event in map(from_line, lines) if event is not None)
        for event in events:
            self._note(event)
        return events

    def _note(self, event: Event) -> None:
        if isinstance(event, Started):
            self.groups = tuple(event.pids.values())
        elif isinstance(event, Ended):
            self.outcome = event.outcome

    def end(self) -> None:
        """See the agent out: it ends its ranks when its input ends. What is left after that is killed."""
        assert self.agent.stdin is not None
        assert self.agent.stdout is not None
        with suppress(OSError):
            self.agent.stdin.close()
        patience = _STOP_S if self._deadline == float("inf") else self._deadline - time.monotonic()
        try:
            self.agent.wait(timeout=max(0.0, patience))
        except subprocess.TimeoutExpired:
            self._kill()
            self.agent.wait()
        if self.outcome is None:
            self._kill()
        self.agent.stdout.close()

    def _kill(self) -> None:
        own = () if self.agent.returncode is not None else (self.agent.pid,)
        kill_groups((*own, *self.groups))
        end_children(spare=self.others)


def _start_agent(folder: RunFolder) -> subprocess.Popen[bytes]:
    try:
        note_launcher(folder)
        folder.logs.mkdir(exist_ok=True)
        with open(folder.agent_log, "ab") as log:
            return subprocess.Popen(
                _AGENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C at the terminal reaches the launcher alone
            )
    except OSError as error:
        raise LaunchError(f"the agent could not be started: {error}") from error


def _environment() -> dict[str, str]:
    """This process's environment, in which the agent and its ranks find this very partrain."""
    found = {**os.environ, "PYTHONSAFEPATH": "1"}
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # a checkout
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (found.get("PYTHONPATH"), root)))
    return found


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _outcome_without(watch: _Watch, folder: RunFolder) -> Outcome:
    """What to say when the agent did not: it was killed, or its word was lost."""
    written = read_outcome(folder)
    if written is not None:
        return written
    if watch.stop:
        message = f"ended by {watch.stop}; the ranks were killed"
        return Outcome("interrupted", STOP_CODES[watch.stop], message, time.time())
    code = watch.agent.returncode
    how = f"was killed by {signal_words(-code)}" if code < 0 else f"ended with exit code {code}"
    said = read_tail(folder.agent_log, 4096).decode(errors="replace").strip().splitlines()
    why = f": {said[-1]}" if said else ""
    message = f"the agent that watches the ranks {how}{why}"
    if not watch.groups:
        return Outcome("failed", 4, f"{message}, before any rank was started", time.time())
    return Outcome("failed", 5, f"{message}; all ranks were ended", time.time())


def _write_down(folder: RunFolder, outcome: Outcome) -> Outcome:
    with suppress(OSError):
        write_json(folder.outcome, asdict(outcome))
    return outcome
