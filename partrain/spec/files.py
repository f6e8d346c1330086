"""A job file's bytes, and the text in them; every way in which there is none has a fault of its own."""

from __future__ import annotations

import codecs
import os
import stat
from itertools import islice
from pathlib import Path

from partrain.errors import Fault, Place
from partrain.spec.scalars import CONTROL
from partrain.spec.tree import file_origin

MAX_BYTES = 2**20
_MAX_NEIGHBOURS = 1000
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NoText(Exception):
    """The file holds no text to read; `args[0]` is the Fault."""


def read_bytes(path: Path) -> bytes:
    """The bytes of `path`, at most one more than a job file may have. Raises NoText."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise NoText(_fault(path, "a folder came, not a job file", _inside(path)))
        if not stat.S_ISREG(mode):
            raise NoText(_fault(path, "this is no regular file", ""))
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NoText(_fault(path, "there is no such file", _beside(path))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NoText(_fault(path, f"it cannot be read: {reason}", "")) from None


def text_of(data: bytes, source: str) -> str:
    """`data` as text, without its byte-order mark. Raises NoText."""
    place = Place(source)
    if len(data) > MAX_BYTES:
        raise NoText(Fault("", f"more than {MAX_BYTES // 2**20} MiB came: this is no job file", place=place))
    if data.startswith(_UTF16):
        raise NoText(Fault("", "UTF-16 text came", "UTF-8 text", "save the file as UTF-8", place))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before, after = data[: error.start].decode(), data[error.start :].decode(errors="replace")
        came = f"the byte 0x{data[error.start]:02x} came, which is no UTF-8"
        at = _place_at(before + after, len(before), source)
        raise NoText(Fault("", came, "UTF-8 text", "save the file as UTF-8", at)) from None
    control = CONTROL.search(text)
    if control is not None:
        at = _place_at(text, control.start(), source)
        raise NoText(Fault("", f"a control character came: U+{ord(control.group()):04X}", "text", "", at))
    return _without_tabs(text, source)


def _without_tabs(text: str, source: str) -> str:
    lines = [number for number, line in enumerate(file_origin(text, source).lines) if _has_tab(line)]
    if not lines:
        return text
    line = file_origin(text, source).lines[lines[0]]
    others = f" (in {len(lines)} lines)" if len(lines) > 1 else ""
    at = Place(source, lines[0] + 1, line.index("\t") + 1, 1, line)
    raise NoText(Fault("", f"a tab came in the indentation{others}", "spaces only", "two spaces a level", at))


def _has_tab(line: str) -> bool:
    return "\t" in line[: len(line) - len(line.lstrip(" \t"))]


def _place_at(text: str, index: int, source: str) -> Place:
    before = file_origin(text[:index], source).lines
    line = file_origin(text, source).lines[len(before) - 1]
    return Place(source, len(before), len(before[-1]) + 1, 1, line)


def _fault(path: Path, message: str, fix: str) -> Fault:
    return Fault("", message, "a YAML file", fix, Place(os.fspath(path)))


def _jobs_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                e.name for e in islice(entries, _MAX_NEIGHBOURS) if e.name.endswith((".yaml", ".yml"))
            )
    except OSError:
        return []


def _inside(folder: Path) -> str:
    names = _jobs_in(folder)
    return (
        f"{folder / names[0]}" if len(names) == 1 else f"one of {', '.join(names[:5])} in it" if names else ""
    )


def _beside(path: Path) -> str:
    import difflib  # only for a file that is not there

    close = difflib.get_close_matches(path.name, _jobs_in(path.parent), n=1, cutoff=0.5)
    return f"did you mean {path.parent / close[0]}?" if close else ""
