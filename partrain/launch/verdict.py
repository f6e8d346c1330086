"""How a run ended, from how its ranks ended: which one failed first, and what to say about it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partrain.run.failures import EXIT_PEER_LOST
from partrain.run.records import Failure, Outcome

# The first failing rank is the one with the strongest evidence against it, then the earliest. A rank killed
# from outside says nothing itself; ranks that lost a peer may be noticed sooner than the peer. Aborts come
# after errors: communication libraries abort a process whose peer is gone.
_EVIDENCE = ("signal", "error", "guard", "abort", "exit", "peer")

STOP_FILE = "stop"
"""Someone left a file that asks the run to stop."""
STOP_CODES = {"SIGINT": 130, "SIGTERM": 143, STOP_FILE: 130}
"""What ended a run -> exit code."""

_SIGNAL_CAUSES = {
    signal.SIGKILL: "often the kernel's out-of-memory killer",
    signal.SIGSEGV: "a crash in compiled code; its log shows where",
    signal.SIGBUS: "often a full /dev/shm, or a file cut short while it was mapped",
    signal.SIGABRT: "compiled code gave up; its log says why",
    signal.SIGILL: "an instruction that this CPU does not have",
    signal.SIGFPE: "an integer division by zero in compiled code",
}


@dataclass(frozen=True)
class RankEnd:
    """What is known of one rank when the run is judged."""

    rank: int
    label: str
    """Its place: `dp 0, pp 1, tp 0`."""
    exit_code: int | None
    """Negative: the signal that killed it; None: it still runs."""
    exited: float
    """Seconds since 1970."""
    word: Failure | None
    """What it wrote about its own end."""
    log_tail: str
    """The end of its log."""


@dataclass(frozen=True)
class Progress:
    """How far the run came."""

    step: int
    """Last step recorded."""
    steps: int
    awaits_evaluation: bool = False
    """Whether that of the last step is not recorded yet."""

    @property
    def complete(self) -> bool:
        return self.step >= self.steps and not self.awaits_evaluation

    def __str__(self) -> str:
        return f"step {self.step} of {self.steps}"


@dataclass(frozen=True)
class Host:
    """What to say of the ranks' host beside a failure that it may explain."""

    memory: str = ""
    """Beside a rank that was killed."""
    disk: str = ""
    """Beside a rank that left with an error."""


def judge(ends: Sequence[RankEnd], progress: Progress, host: Host) -> Outcome:
    """The outcome of a run whose ranks have ended, or are about to be ended.

    With the last step recorded the training is done, whatever happens while it is taken down, unless a
    rank says that it failed.
    """
    failures = _failures(ends, progress, host)
    if progress.complete and not any(failure.kind in ("error", "guard") for failure in failures):
        return Outcome("done", 0, _done_message(ends, progress), time.time(), None, failures)
    if failures:
        first, *others = failures
        label = next(end.label for end in ends if end.rank == first.rank)
        others.sort(key=lambda failure: failure.rank)
        return Outcome("failed", 5, first_message(first, label), time.time(), first, tuple(others))
    left = [str(end.rank) for end in ends if end.exit_code is not None]
    who = "all ranks" if len(left) == len(ends) else f"rank {', '.join(left)}" if left else "no rank"
    return Outcome("failed", 5, f"{who} left without an error at {progress}", time.time())


def first_message(failure: Failure, label: str) -> str:
    """One line that names the first failing rank, unless all fail alike: then it says what they say."""
    if failure.kind == "guard":
        return failure.message
    joint = " " if failure.kind in ("signal", "exit") else ": "
    return f"rank {failure.rank} ({label}){joint}{failure.message}"


def _done_message(ends: Sequence[RankEnd], progress: Progress) -> str:
    late = [str(end.rank) for end in ends if end.exit_code != 0]
    note = f"; rank {', '.join(late)} did not end by itself after the last step" if late else ""
    return f"all {progress.steps} steps{note}"


def _failures(ends: Sequence[RankEnd], progress: Progress, host: Host) -> tuple[Failure, ...]:
    """Failures of the ranks that have one, the first to blame first."""
    found = [(end, failure) for end in ends if (failure := _failure(end, progress, host)) is not None]
    found.sort(key=lambda pair: (_evidence(*pair), pair[1].time, pair[1].rank))
    return tuple(failure for _, failure in found)


def _evidence(end: RankEnd, failure: Failure) -> int:
    aborted = failure.kind == "signal" and end.exit_code == -signal.SIGABRT
    kind = "abort" if aborted else failure.kind
    return _EVIDENCE.index(kind) if kind in _EVIDENCE else len(_EVIDENCE)


def _failure(end: RankEnd, progress: Progress, host: Host) -> Failure | None:
    if end.word is not None:
        return _with(host.disk, end.word) if end.word.kind == "error" else end.word
    if not end.exit_code:
        return None
    step = None if progress.step >= progress.steps else progress.step + 1
    if end.exit_code < 0:
        message = f"was killed by {signal_words(-end.exit_code)}"
        killed = Failure(end.rank, end.exited, "signal", message, end.log_tail, step)
        return _with(host.memory, killed) if end.exit_code == -signal.SIGKILL else killed
    if end.exit_code == EXIT_PEER_LOST:
        return Failure(end.rank, end.exited, "peer", "lost its connection to another rank", "", step)
    message = f"left with exit code {end.exit_code}; the end of its log may say why"
    return _with(host.disk, Failure(end.rank, end.exited, "exit", message, end.log_tail, step))


def _with(said: str, failure: Failure) -> Failure:
    return replace(failure, message=f"{failure.message}; {said}") if said else failure


def signal_words(number: int) -> str:
    """A signal in words.

    >>> signal_words(9)
    "signal 9 (SIGKILL): often the kernel's out-of-memory killer"
    >>> signal_words(15)
    'signal 15 (SIGTERM)'
    """
    try:
        known = signal.Signals(number)
    except ValueError:  # a real-time signal
        return f"signal {number}"
    cause = _SIGNAL_CAUSES.get(known)
    return f"signal {number} ({known.name})" + (f": {cause}" if cause else "")
