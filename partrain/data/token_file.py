"""The token file: a flat binary and a JSON header beside it, found and checked without numpy.

`corpus.bin` holds the tokens one after the other, unsigned, little-endian, with nothing before, between or
after them. `corpus.json` is its header (`token_header.py`).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from partrain.data.faults import KEY, data_error
from partrain.data.token_header import ITEM_BYTES, header_faults, read_header
from partrain.errors import DataError, Fault
from partrain.spec.data import BUILTIN

NAMES = ("a .bin file with its .json beside it", "a folder with one such pair")
"""What may name a token file."""

ALLOWED = ", ".join((*NAMES, *BUILTIN))
"""What `data.train` may be."""
_NUM_SHOWN = 8


@dataclass(frozen=True)
class TokenFile:
    """A token file whose header and size agree."""

    path: Path
    """The binary, absolute."""
    dtype: str
    """`uint16` or `uint32`."""
    num_tokens: int
    vocab_size: int


def find_token_file(source: str) -> TokenFile:
    """The token file that `source` names: its .bin, its .json, or a folder with one such pair.

    Raises DataError with every fault of path, header and size.
    """
    path = _binary_of(Path(os.path.abspath(os.path.expanduser(source))))
    num_bytes = _readable_size(path)
    found = read_header(path.with_suffix(".json"))
    dtype, num_tokens = found.get("dtype"), found.get("num_tokens")
    faults = header_faults(path.with_suffix(".json"), found)
    # the size can be judged as soon as the two keys it depends on are sound
    if isinstance(dtype, str) and dtype in ITEM_BYTES and type(num_tokens) is int and num_tokens > 0:
        faults += _size_faults(path, num_bytes, num_tokens=num_tokens, item_bytes=ITEM_BYTES[dtype])
    if faults:
        raise DataError(faults)
    return TokenFile(path, found["dtype"], found["num_tokens"], found["vocab_size"])


def _binary_of(path: Path) -> Path:
    """The .bin that `path` stands for."""
    try:
        mode = os.stat(path).st_mode
        names = sorted(os.listdir(path)) if stat.S_ISDIR(mode) else None
    except (OSError, ValueError) as error:
        raise _unreachable(path, error) from error
    if names is None:
        if path.suffix not in (".bin", ".json"):
            raise data_error(f"{path} is not a token file", allowed=ALLOWED)
        return path.with_suffix(".bin")
    binaries = [name for name in names if name.endswith(".bin")]
    if not binaries:
        raise data_error(f"the folder {path} holds no token file (.bin)", allowed=ALLOWED)
    if len(binaries) > 1:
        shown = ", ".join(binaries[:_NUM_SHOWN]) + (", ..." if len(binaries) > _NUM_SHOWN else "")
        message = f"the folder {path} holds {len(binaries)} token files: {shown}"
        raise data_error(message, allowed="one token file", fix=f"name one, as {path / binaries[0]}")
    return path / binaries[0]


def _readable_size(path: Path) -> int:
    """Size in bytes of a regular file that can be opened for reading."""
    try:
        # looked at before it is opened: a pipe would be waited for without end
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise data_error(f"{path} is not a regular file")
        with open(path, "rb"):
            return found.st_size
    except OSError as error:
        raise _unreachable(path, error) from error


def _unreachable(path: Path, error: OSError | ValueError) -> DataError:
    """The fault of a path that cannot be used; the nearest names where it leads nowhere."""
    if not isinstance(error, FileNotFoundError):
        return data_error(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    try:
        near = get_close_matches(missing.name, os.listdir(missing.parent), n=3)
    except OSError:
        near = []
    stops = f"; the path ends at {missing.parent}" if missing != path else ""
    fix = f"did you mean {' or '.join(str(missing.with_name(name)) for name in near)}?" if near else ""
    return data_error(f"{path} does not exist{stops}", allowed=ALLOWED, fix=fix)


def _size_faults(path: Path, num_bytes: int, *, num_tokens: int, item_bytes: int) -> list[Fault]:
    """What is wrong with the size of the binary."""
    declared_bytes = num_tokens * item_bytes
    if num_bytes == declared_bytes:
        return []
    tokens = f"{abs(num_bytes - declared_bytes) / item_bytes:.10g} tokens"
    message = f"{path} has {num_bytes} bytes, {num_tokens} tokens of {item_bytes} bytes have {declared_bytes}"
    if num_bytes < declared_bytes:
        return [Fault(KEY, f"{message}: {tokens} short", fix="copy or write the file again")]
    return [Fault(KEY, f"{message}: {tokens} too many", fix="correct num_tokens or dtype in its .json")]
