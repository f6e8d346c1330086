"""The few kinds of error a user can meet, each with the exit code of the command contract."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_EXCERPT = 96
"""Characters of a line that are shown around its mark."""


def escaped(text: str) -> str:
    """`text` with every character that a terminal could act on, or not show, spelled out.

    >>> escaped("a\\x1b[31m\\tb")
    'a\\\\x1b[31m\\\\tb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file's line and column (1-based), or the option that gave it.

    `source` is a file name, `--set training.steps=50`, or an environment variable's name. `line` 0
    means that the source has no lines (an option); `text` is the whole offending line.
    """

    source: str
    line: int = 0
    column: int = 0
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with an input: where, what came, what is allowed, the nearest fix."""

    path: str
    message: str
    allowed: str = ""
    fix: str = ""
    place: Place | None = None

    def __str__(self) -> str:
        head = (escaped(str(self.place or "")), escaped(self.path), self.message)
        lines = [": ".join(part for part in head if part)]
        if self.place is not None and self.place.line:
            text, marks = _excerpt(self.place)
            gutter = f"{self.place.line:>5} | "
            lines += [gutter + text, " " * (len(gutter) - 2) + "| " + marks]
        lines += [
            f"      {word}: {text}" for word, text in (("allowed", self.allowed), ("fix", self.fix)) if text
        ]
        return "\n".join(lines)


def _excerpt(place: Place) -> tuple[str, str]:
    """The line of `place` and the mark under it, both cut around the mark and safe on a terminal."""
    start = place.column - 1
    first = max(0, min(start - _EXCERPT // 3, len(place.text) - _EXCERPT))
    before = ("…" if first else "") + escaped(place.text[first:start])
    marked = escaped(place.text[start : min(start + place.length, first + _EXCERPT)])
    after = escaped(place.text[start + place.length : first + _EXCERPT])
    cut = "…" if len(place.text) > first + _EXCERPT else ""
    return before + marked + after + cut, " " * _width(before) + "^" * max(1, _width(marked))


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


@dataclass(frozen=True)
class Reason:
    """Why values do not go together: the key paths involved, the likeliest culprit first.

    What judges values does not know where they stand; a Reason becomes a Fault where that is known.
    """

    paths: tuple[str, ...]
    message: str
    allowed: str = ""
    fix: str = ""


class PartrainError(Exception):
    """A fault of the user's input or surroundings, never of the program; caught once, in `cli`."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n      fix: {self.hint}" if self.hint else self.message


class FaultsError(PartrainError):
    """All faults of one input together, in the order of their places."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class SpecError(FaultsError):
    """An input is wrong or contradicts itself."""

    exit_code = 2


class DataError(FaultsError):
    """A dataset is missing, damaged or does not fit the job."""

    exit_code = 2


class InfeasibleError(FaultsError):
    """Nothing legal is left to choose for a value that was `auto`."""

    exit_code = 3


class CheckpointError(PartrainError):
    """A checkpoint is missing, damaged, hostile, or does not fit the job."""

    exit_code = 2


class LaunchError(PartrainError):
    """The processes could not be started."""

    exit_code = 4


class RunError(PartrainError):
    """A run failed, or a run folder cannot be used."""

    exit_code = 5


class ShortageError(RunError):
    """A rank was refused memory."""


class GuardError(RunError):
    """A training went wrong by itself, and every rank ends in the same step and says the same."""

    def __init__(self, message: str, *, hint: str = "", sound_step: int | None = None) -> None:
        """`sound_step`: the step that weights and states, sound ones, are of; None: they are not sound."""
        super().__init__(message, hint=hint)
        self.sound_step = sound_step
