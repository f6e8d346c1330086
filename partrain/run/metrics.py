"""metrics.jsonl as its readers see it: while it grows, and with whatever a crash left in it."""

from __future__ import annotations

import math
import os
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from partrain.run.reading import object_in, open_regular, read_tail
from partrain.run.records import StepRecord

_CHUNK_BYTES = 2**18
_LONGEST_LINE_BYTES = 2**16
_LARGEST_INT = 2**63
_NUMBER = (int, float, type(None))
_KINDS = {"int": (int,), "float": _NUMBER, "float | None": _NUMBER, "bool": (bool,), "str": (str,)}
_FIELDS = {field.name: str(field.type) for field in fields(StepRecord)}
_REQUIRED = [field.name for field in fields(StepRecord) if field.default is MISSING]


def record_from(line: str | bytes) -> StepRecord | None:
    """The record that a line spells, NaN where a measured number is null; None: it is not one.

    Keys of later versions are left aside, those that came after the first version may be missing.
    """
    value = object_in(line)
    if value is None or not all(name in value for name in _REQUIRED):
        return None
    known = {name: kind for name, kind in _FIELDS.items() if name in value}
    if not all(_fits(value[name], kind) for name, kind in known.items()):
        return None
    return StepRecord(**{name: _measured(value[name], kind) for name, kind in known.items()})


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    if isinstance(value, int) and abs(value) >= _LARGEST_INT:
        return False
    return isinstance(value, _KINDS[kind])


def _measured(value: Any, kind: str) -> Any:
    return math.nan if value is None and kind == "float" else value


def last_record(path: Path) -> StepRecord | None:
    """The last whole record of a file, read from its end; None: it has none."""
    for line in reversed(read_tail(path, _LONGEST_LINE_BYTES).split(b"\n")):
        record = record_from(line)
        if record is not None:
            return record
    return None


class MetricsTail:
    """The records that were appended since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> tuple[StepRecord, ...]:
        """Whole new records, at most a chunk of them; lines that are no record are left out.

        A line without its end is left for later, unless it is too long ever to be a record.
        """
        data = self._next_chunk()
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK_BYTES:
            end = len(data)
        self._offset += end
        found = (record_from(line) for line in data[:end].splitlines())
        return tuple(record for record in found if record is not None)

    def _next_chunk(self) -> bytes:
        try:
            descriptor = open_regular(self._path)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, _CHUNK_BYTES, self._offset)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
