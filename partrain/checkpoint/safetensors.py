"""Safetensors files, written and read directly: eight bytes with the header's length, the header as JSON,
the bytes of the tensors one after another (https://github.com/huggingface/safetensors, "Format").

The standard library is enough, and a checksum can be taken while the bytes go by.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from partrain.errors import CheckpointError

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}
"""Bytes of an element, by the format's names of kinds."""

METADATA = "__metadata__"
_LENGTH_BYTES = 8
_ALIGN = 64
"""The data begins at a multiple of this, so that mapped tensors are aligned."""
_LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the reference reader."""
_CHUNK = 2**24
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How torch's files, which are pickles, and bare pickles begin."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the beginning of the file."""

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """The bytes before the data of (name, dtype, shape) one after another, and how many the data has."""
    table: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGN)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, offset


def write(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write `parts` one after another into a new file, durably; its size in bytes and its SHA-256.

    Raises OSError.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                chunk = rest[:_CHUNK]
                digest.update(chunk)
                _write_all(file, chunk)
                size, rest = size + len(chunk), rest[len(chunk) :]
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def _write_all(file: Any, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[file.write(chunk) :]


def sha256(path: Path) -> str:
    """SHA-256 of all bytes of a regular file, in hexadecimal.

    Raises CheckpointError where there is none, OSError where it cannot be read.
    """
    digest = hashlib.sha256()
    with opened(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def opened(path: Path) -> BinaryIO:
    """A regular file, open for reading.

    Raises CheckpointError for what is no regular file: a link may lead anywhere, a pipe never ends.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{path.name}: {_why_not(path, error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path.name}: not a file")
    return open(descriptor, "rb", buffering=0)


def _why_not(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return "a link, not a file"
    return "missing" if isinstance(error, FileNotFoundError) else str(error.strerror)


def entries(path: Path) -> dict[str, Entry]:
    """The tensors of a file by name, in the order of their data.

    Raises CheckpointError unless the header is whole and the tensors fill the file without gap or overlap.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(_LENGTH_BYTES)
        length = int.from_bytes(first, "little")
        if len(first) < _LENGTH_BYTES or not 2 <= length <= min(_LONGEST_HEADER, size - _LENGTH_BYTES):
            kind = "a pickle; only safetensors files are read" if first.startswith(_PICKLES) else ""
            raise CheckpointError(f"{path.name}: {kind or 'not a safetensors file'}")
        text = file.read(length)
    try:
        table = json.loads(text, object_pairs_hook=unique)
        found = _entries(table, _LENGTH_BYTES + length)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: its header cannot be read: {error}") from error
    end = _LENGTH_BYTES + length
    for name, entry in found.items():
        if entry.start != end:
            raise CheckpointError(f"{path.name}: {name} does not begin where the tensor before it ends")
        end += entry.num_bytes
    if end != size:
        raise CheckpointError(f"{path.name}: its tensors end at byte {end}, the file at {size}")
    return found


def _entries(table: Any, data_start: int) -> dict[str, Entry]:
    if not isinstance(table, dict):
        raise ValueError("no JSON object")
    found = {}
    for name, value in table.items():
        if name == METADATA:
            continue
        first, end = value["data_offsets"]
        entry = Entry(value["dtype"], tuple(value["shape"]), data_start + first)
        if not all(type(number) is int and number >= 0 for number in (first, end, *entry.shape)):
            raise ValueError(f"{name}: sizes are whole numbers")
        if entry.dtype not in ITEM_BYTES or end - first != entry.num_bytes:
            raise ValueError(f"{name}: dtype, shape and offsets do not agree")
        found[name] = entry
    return dict(sorted(found.items(), key=lambda item: (item[1].start, item[1].num_bytes)))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text; ValueError for a key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found
