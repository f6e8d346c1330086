"""What a process that samples is asked, and what it or one that exports says: JSON on standard streams."""

from __future__ import annotations

import json
from dataclasses import dataclass

from partrain.spec.section import Count, NonNegative, Whole
from partrain.spec.values import plain, read


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """All that decides which tokens are drawn."""

    checkpoint: str
    """Folder of a whole checkpoint."""
    prompt: tuple[Whole, ...]
    """Tokens to go on from, at least one."""
    count: Count
    """Tokens to draw."""
    vocabulary: Count
    """What is drawn is below this."""
    context: Count
    """Tokens that are in view at most."""
    temperature: NonNegative
    """What logits are divided by; 0: the likeliest token is taken."""
    top_k: Count | None
    """Only this many of the likeliest tokens are drawn from; None: all."""
    seed: Whole

    def to_json(self) -> str:
        """For the process's standard input."""
        return json.dumps(plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> SampleRequest:
        """What `to_json` wrote. Raises ValueError on anything else."""
        return read(cls, json.loads(text))


@dataclass(frozen=True)
class Ready:
    """The model is there."""

    device: str
    precision: str


@dataclass(frozen=True)
class Drawn:
    """A token."""

    token: Whole


@dataclass(frozen=True)
class Wrote:
    """A file, durably."""

    name: str
    size: Whole
    """Bytes."""


@dataclass(frozen=True)
class Refused:
    """Nothing further comes, by a fault of the user's input or surroundings."""

    message: str
    hint: str
    exit_code: Whole


Said = Ready | Drawn | Wrote | Refused
_KINDS: dict[str, type[Said]] = {"ready": Ready, "drawn": Drawn, "wrote": Wrote, "refused": Refused}


def to_line(said: Said) -> str:
    """A line of the process's standard output.

    >>> to_line(Drawn(65))
    '{"drawn": {"token": 65}}\\n'
    """
    (kind,) = (name for name, value in _KINDS.items() if isinstance(said, value))
    return json.dumps({kind: plain(said)}) + "\n"


def said_in(line: str | bytes) -> Said:
    """What `to_line` wrote. Raises ValueError on anything else."""
    value = json.loads(line)
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= _KINDS.keys():
        raise ValueError(f"not a word of a process: {line!r}")
    ((kind, content),) = value.items()
    return read(_KINDS[kind], content)


def first_in_view(length: int, context: int) -> int:
    """Which token of a text of `length` is the oldest that the next one sees.

    A text longer than the context drops half a context of its oldest tokens at a time: what is kept of the
    others is of use for as many tokens as were dropped.

    >>> [first_in_view(length, 8) for length in (1, 8, 9, 12, 13)]
    [0, 0, 4, 4, 8]
    """
    half = max(1, context // 2)
    return max(0, -(-(length - context) // half) * half)
