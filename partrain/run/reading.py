"""Reading the files of a run folder, which anyone may have written: no links, no pipes, no endless files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

LARGEST_JSON_BYTES = 64 * 2**20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: Path) -> int:
    """A descriptor of the regular file at `path`, to be closed by the caller.

    Raises OSError where there is none: a link, a pipe or a device is not opened for reading (a pipe would
    block, a device may never end).
    """
    descriptor = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is not a regular file")


def read_regular(path: Path, *, limit: int = LARGEST_JSON_BYTES) -> str | None:
    """The text of a regular file of at most `limit` bytes; None: there is none that can be read."""
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(limit + 1)
        return data.decode() if len(data) <= limit else None
    except (OSError, UnicodeDecodeError):
        return None


def read_object(path: Path) -> Mapping[str, Any] | None:
    """The JSON object in a file; None: there is none that can be read."""
    return object_in(read_regular(path))


def object_in(text: str | bytes | None) -> Mapping[str, Any] | None:
    """The JSON object that `text` spells; None: it does not spell one.

    >>> object_in('{"step": 1}'), object_in('{"step": '), object_in("[1]")
    ({'step': 1}, None, None)
    """
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def known_keys(kind: Any, value: object) -> object:
    """The keys of `value` that the dataclass `kind` has, if it is an object: later versions may know more."""
    if not isinstance(value, dict):
        return value
    return {field.name: value[field.name] for field in fields(kind) if field.name in value}


def read_tail(path: Path, num_bytes: int) -> bytes:
    """The last `num_bytes` bytes of a regular file, or all it has; empty where there is none."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes))
            return file.read(num_bytes)
    except OSError:
        return b""
