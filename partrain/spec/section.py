"""What the values of a job file may be, for the annotations of its sections.

A section is a frozen dataclass. From its annotations, with these bounds, `spec/forms.py` makes one table, by
which values are read, faults are told in words, and the editors' schema is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class Bounds:
    """Limits of a value within its type; None: no limit."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    """Characters of a text at least."""
    pattern: str | None = None
    """Regular expression that the whole text matches."""
    meaning: str = ""
    """What the value is, where its limits do not make that plain."""


UNBOUNDED = Bounds()
Auto = Literal["auto"]
Count = Annotated[int, Bounds(ge=1)]
Whole = Annotated[int, Bounds(ge=0)]
Positive = Annotated[float, Bounds(gt=0)]
NonNegative = Annotated[float, Bounds(ge=0)]
Share = Annotated[float, Bounds(gt=0, le=1)]
Part = Annotated[float, Bounds(gt=0, lt=1)]
Fraction = Annotated[float, Bounds(ge=0, lt=1)]
Text = Annotated[str, Bounds(min_length=1)]
ShareOrPath = Annotated[str, Bounds(pattern=r"^\S.*$")]
Name = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
