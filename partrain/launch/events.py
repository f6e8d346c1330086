"""What an agent tells its supervisor, one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from partrain.run.metrics import record_of
from partrain.run.notices import Notice
from partrain.run.reading import object_in
from partrain.run.records import (
    EvaluationRecord,
    Failure,
    Outcome,
    StepRecord,
    failure_from,
    outcome_from,
)


@dataclass(frozen=True)
class Started:
    """All ranks of a host are there."""

    pids: Mapping[int, int]
    """Rank -> process; each is the leader of a process group of the same number."""


@dataclass(frozen=True)
class Recorded:
    """A step is done."""

    record: StepRecord


@dataclass(frozen=True)
class Evaluated:
    """The validation set was evaluated."""

    record: EvaluationRecord


@dataclass(frozen=True)
class Noted:
    """The run has something to say."""

    notice: Notice


@dataclass(frozen=True)
class Failed:
    """A rank failed; the others are about to be ended."""

    message: str
    failure: Failure


@dataclass(frozen=True)
class Stopping:
    """The launcher was asked to stop and waits for the ranks to end."""

    signal: str


@dataclass(frozen=True)
class Ended:
    """Nothing of the run is left on the host."""

    outcome: Outcome


Event = Started | Recorded | Evaluated | Noted | Failed | Stopping | Ended


def to_line(event: Event) -> bytes:
    """`event` as a line of JSON, its kind under the key `event`."""
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)}).encode() + b"\n"


_Kind = TypeVar("_Kind", StepRecord, EvaluationRecord)


def _record(kind: type[_Kind], value: Mapping[str, Any]) -> _Kind:
    record = record_of(value)
    if not isinstance(record, kind):
        raise ValueError(f"not a {kind.__name__}")
    return record


def from_line(line: bytes) -> Event | None:
    """The event that `to_line` wrote; None: the line is not one."""
    value = object_in(line)
    reader = _READERS.get(str(value.get("event"))) if value else None
    if value is None or reader is None:
        return None
    try:
        return reader(value)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Event]] = {
    "started": lambda value: Started({int(rank): int(pid) for rank, pid in value["pids"].items()}),
    "recorded": lambda value: Recorded(_record(StepRecord, value["record"])),
    "evaluated": lambda value: Evaluated(_record(EvaluationRecord, value["record"])),
    "noted": lambda value: Noted(Notice(**value["notice"])),
    "failed": lambda value: Failed(str(value["message"]), failure_from(value["failure"])),
    "stopping": lambda value: Stopping(str(value["signal"])),
    "ended": lambda value: Ended(outcome_from(value["outcome"])),
}
