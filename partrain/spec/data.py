"""The data: where the tokens come from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from partrain.spec.section import Part, ShareOrPath, Text

BUILTIN = ("builtin:python-source", "synthetic")
"""Sources that need no file: the standard library's own text as bytes, and random tokens."""

_PERCENT = re.compile(r"([-+]?[0-9]*\.?[0-9]+)\s*%")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The `data` section."""

    train: Text
    """`builtin:python-source`, `synthetic`, or the path of a token file (or of the folder with one)."""
    validation: Part | ShareOrPath | None = None
    """What evaluation reads: a share of the training data, as 1% or 0.01, its last sequences, which are then
    not trained on; or the path of another token file. Left out: nothing is evaluated."""


def share_of(validation: float | str | None) -> float | None:
    """The part of the training data that `data.validation` names; None: it names a file, or nothing.

    >>> share_of("1%"), share_of(0.25), share_of("held/out.bin")
    (0.01, 0.25, None)
    """
    if not isinstance(validation, str):
        return validation
    percent = _PERCENT.fullmatch(validation)
    return float(percent.group(1)) / 100 if percent else None
