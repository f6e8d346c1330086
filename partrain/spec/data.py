"""The data: where the tokens come from."""

from __future__ import annotations

from dataclasses import dataclass

from partrain.spec.section import Text

BUILTIN = ("builtin:python-source", "synthetic")
"""Sources that need no file: the standard library's own text as bytes, and random tokens."""


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The `data` section."""

    train: Text
    """`builtin:python-source`, `synthetic`, or the path of a token file (or of the folder with one)."""
