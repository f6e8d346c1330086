"""metrics.jsonl as its readers see it: while it grows, and with whatever a crash left in it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from partrain.run.reading import object_in, open_regular, read_tail
from partrain.run.records import EvaluationRecord, Record, StepRecord

T = TypeVar("T")
_CHUNK_BYTES = 2**18
_LONGEST_LINE_BYTES = 2**16
_LONGEST_SEARCH_BYTES = 2**24
_LARGEST_INT = 2**63
_NUMBER = (int, float, type(None))
_SIZES = "tuple[int, ...]"
_KINDS = {"int": (int,), "float": _NUMBER, "float | None": _NUMBER, "bool": (bool,), "str": (str,)}
_Kind = TypeVar("_Kind", StepRecord, EvaluationRecord)
_FIELDS: Mapping[type[Record], Mapping[str, str]] = {
    kind: {field.name: str(field.type) for field in fields(kind)} for kind in (StepRecord, EvaluationRecord)
}
_DEFAULTS = {
    kind: {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    for kind in _FIELDS
}


def record_from(line: str | bytes) -> Record | None:
    """The record that a line spells, NaN where a measured number is null; None: it is not one.

    Keys of later versions are left aside, those that came after the first version may be missing.
    """
    value = object_in(line)
    return None if value is None else record_of(value)


def record_of(value: Mapping[str, Any]) -> Record | None:
    """The record that an object spells; None: it is not one."""
    for kind, names in _FIELDS.items():
        found = {**_DEFAULTS[kind], **value}
        if all(_fits(found.get(name, ""), form) for name, form in names.items()):
            return kind(**{name: _measured(found[name], form) for name, form in names.items()})
    return None


def _fits(value: object, kind: str) -> bool:
    if kind == _SIZES:
        return isinstance(value, (list, tuple)) and all(_fits(item, "int") for item in value)
    if isinstance(value, bool):
        return kind == "bool"
    if isinstance(value, int) and abs(value) >= _LARGEST_INT:
        return False
    return isinstance(value, _KINDS[kind])


def _measured(value: Any, kind: str) -> Any:
    if kind == _SIZES:
        return tuple(value)
    return math.nan if value is None and kind == "float" else value


def last_record(path: Path) -> StepRecord | None:
    """The last whole record of a step, read from the file's end; None: it has none."""
    return _last(path, StepRecord, _LONGEST_LINE_BYTES)


def last_evaluation(path: Path) -> EvaluationRecord | None:
    """The last whole record of an evaluation; None: there is none in the last ten thousands of lines."""
    return _last(path, EvaluationRecord, _LONGEST_SEARCH_BYTES)


def _last(path: Path, kind: type[_Kind], num_bytes: int) -> _Kind | None:
    name = next(name.encode() for name in _FIELDS[kind] if name != "step")
    for line in reversed(read_tail(path, num_bytes).split(b"\n")):
        # by far the most lines are of the other kind
        record = record_from(line) if name in line else None
        if isinstance(record, kind):
            return record
    return None


def cut_after(step: int, path: Path, dropped: Path) -> None:
    """Leave the records up to `step` in a file, and move all else, a torn line too, to the end of `dropped`.

    The file is replaced, never cut short: who follows it sees another file. Raises OSError.
    """
    if not path.exists():
        return
    rest: list[bytes] = []
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(path, "rb") as old, open(new, "wb") as kept:
        for line in old:
            record = record_from(line)
            if record is not None and record.step <= step and line.endswith(b"\n"):
                kept.write(line)
            else:
                rest.append(line)
        kept.flush()
        os.fsync(kept.fileno())
    if not rest:
        new.unlink()
        return
    with open(dropped, "ab") as file:
        file.writelines(rest)
    os.replace(new, path)


class Tail(Generic[T]):
    """What was appended to a file of lines since the last look."""

    def __init__(self, path: Path, parse: Callable[[bytes], T | None]) -> None:
        self._path, self._parse = path, parse
        self._offset = self._file = 0

    def read(self) -> tuple[T, ...]:
        """What whole new lines spell, at most a chunk of them; lines that spell nothing are left out.

        A line without its end is left for later, unless it is too long ever to be a record.
        """
        data = self._next_chunk()
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK_BYTES:
            end = len(data)
        self._offset += end
        found = (self._parse(line) for line in data[:end].splitlines())
        return tuple(item for item in found if item is not None)

    def _next_chunk(self) -> bytes:
        try:
            descriptor = open_regular(self._path)
        except OSError:
            return b""
        try:
            number = os.fstat(descriptor).st_ino
            if number != self._file:  # another file of that name is read from its beginning
                self._file, self._offset = number, 0
            return os.pread(descriptor, _CHUNK_BYTES, self._offset)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
