"""The data: where the tokens come from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from partrain.spec.section import Section

BUILTIN = ("builtin:python-source", "synthetic")
"""Sources that need no file: the standard library's own text as bytes, and random tokens."""


class DataSection(Section):
    """The `data` section."""

    train: Annotated[str, Field(min_length=1)]
    """`builtin:python-source`, `synthetic`, or the path of a token file (or of the folder with one)."""
