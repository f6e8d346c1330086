"""What a person sees, and the JSON that a program reads: the only place that prints.

Every text passes through `escaped`, so nothing that stands in a job or in a run's files reaches the terminal
as a control sequence. Colour is for terminals, and not where NO_COLOR is set.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from partrain.errors import FaultsError, PartrainError, escaped

Span = str | tuple[str, str]
"""Text, or text with a style."""

_STYLES = {"bold": "1", "dim": "2", "good": "32", "bad": "31"}
_INDENT = "  "
_WIDEST_VALUE = 40
"""Column where origins stand at the latest."""
_WIDTH = 100
"""Columns that bars are drawn for where there is no terminal."""
_SHORTEST_BAR, _LONGEST_BAR = 6, 30
_NARROWEST = 20
"""Columns below which folding a text makes it no easier to read."""


def at_terminal(file: TextIO | None = None) -> bool:
    """Whether the output (or `file`) is read by a person at a terminal that can move its cursor."""
    return (file or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def say(*spans: Span, file: TextIO | None = None) -> None:
    """Print one line, made of spans."""
    colour = at_terminal(file) and not os.environ.get("NO_COLOR")
    print("".join(_painted(span, colour) for span in spans), file=file or sys.stdout, flush=True)


def _painted(span: Span, colour: bool) -> str:
    if isinstance(span, str):
        return escaped(span)
    text, style = span
    return f"\x1b[{_STYLES[style]}m{escaped(text)}\x1b[0m" if colour and text else escaped(text)


def say_text(text: str, *, indent: str = "", style: str = "", file: TextIO | None = None) -> None:
    """Print a text of several lines."""
    for line in text.split("\n"):
        say((indent + line, style) if style else indent + line, file=file)


def stream(text: str, *, style: str = "") -> None:
    """Print a part of a text as it comes: its lines and tabs as they are, and no end of a line after it."""
    shown = "".join(c if c in "\n\t" else escaped(c) for c in text)
    colour = style and at_terminal() and not os.environ.get("NO_COLOR")
    print(f"\x1b[{_STYLES[style]}m{shown}\x1b[0m" if colour else shown, end="", flush=True)


def say_json(value: Any) -> None:
    """Print the one JSON document of a command; a number that JSON cannot spell (NaN) becomes null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report_error(error: PartrainError, *, as_json: bool) -> None:
    """Print a user's fault: for a person to standard error, for a program to standard output."""
    if as_json:
        say_json(_error_object(error))
        return
    say_text(str(error), file=sys.stderr)
    if isinstance(error, FaultsError) and len(error.faults) > 1:
        say((f"{len(error.faults)} faults", "bold"), file=sys.stderr)


def _error_object(error: PartrainError) -> dict[str, Any]:
    if not isinstance(error, FaultsError):
        return {"error": error.message, "fix": error.hint, "exit_code": error.exit_code}
    faults = [
        {
            "path": fault.path,
            "place": fault.place
            and {"source": fault.place.source, "line": fault.place.line, "column": fault.place.column},
            "message": fault.message,
            "allowed": fault.allowed,
            "fix": fault.fix,
        }
        for fault in error.faults
    ]
    return {"faults": faults, "exit_code": error.exit_code}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print columns as wide as their widest cell; those named in `right` stand to the right."""
    first, *rest = _lines(header, rows, right=right)
    say((first, "bold"))
    for line in rest:
        say(line)


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str] = ()) -> list[str]:
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [name in set(right) for name in header]
    padded = [
        [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        ]
        for row in cells
    ]
    return [_INDENT.join(row).rstrip() for row in padded]


def bars(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    shares: Sequence[float | None],
    *,
    right: Iterable[str] = (),
    of: str,
) -> None:
    """Print a table whose last column shows a share of a whole as a bar.

    What is above the whole has a sign of its own; None: there is nothing to show. `of`: the whole, in words.
    """
    first, *lines = _lines(header, rows, right=right)
    longest = max(map(len, (first, *lines)))
    words = ["" if share is None else "<1%" if share < 0.005 else f"{share:.0%}" for share in shares]
    room = (_columns() if at_terminal() else _WIDTH) - longest - len(_INDENT) - 1 - max(map(len, words))
    width = max(_SHORTEST_BAR, min(_LONGEST_BAR, room))
    scale = width / max(1.0, *(share or 0.0 for share in shares))
    say((f"{first.ljust(longest)}{_INDENT}{of}", "bold"))
    for line, share, said in zip(lines, shares, words, strict=True):
        if share is None:
            say(line)
        else:
            say(line.ljust(longest) + _INDENT, *_bar(share, scale, width), f" {said}")


def _bar(share: float, scale: float, width: int) -> tuple[Span, ...]:
    """`share` times `scale` signs of `width`, at least one: up to the whole, above it, and the rest."""
    within, above, empty = tuple(_bar_signs())
    ends = max(1, round(min(share, 1.0) * scale)), max(1, round(share * scale))
    return (
        (within * ends[0], "good"),
        (above * (ends[1] - ends[0]), "bad"),
        (empty * (width - ends[1]), "dim"),
    )


def _bar_signs() -> str:
    try:
        "█▓░".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#!."
    return "█▓░"


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def item(name: Span, text: str) -> None:
    """Print a name and a text beside it, folded below itself."""
    _say_folded(name, text)


def pairs(rows: Mapping[str, str]) -> None:
    """Print names and what they stand for, the latter below one another."""
    width = max(map(len, rows), default=0)
    for name, text in rows.items():
        _say_folded((name.ljust(width) + _INDENT, "dim"), text)


def notes(texts: Iterable[str]) -> None:
    """Print what the user should know."""
    for text in texts:
        _say_folded(("note: ", "bold"), text)


def verdict(word: str, text: str) -> None:
    """Print how something ended, in a word and a sentence."""
    styles = {"ok": "good", "done": "good", "fits": "good", "failed": "bad", "does not fit": "bad"}
    style = styles.get(word, "bold")
    _say_folded((f"{word}: ", style), text)


def _say_folded(name: Span, text: str) -> None:
    width = len(name if isinstance(name, str) else name[0])
    first, *rest = _folded(text, width)
    say(name, first)
    for line in rest:
        say(" " * width + line)


def _folded(text: str, indent: int) -> list[str]:
    """`text` in lines that fit the terminal behind `indent` columns; elsewhere in one, for `grep`."""
    if not at_terminal():
        return [text]
    import textwrap

    width = _columns() - indent
    if width < _NARROWEST:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def tree(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Print nested mappings as YAML, beside each value where it comes from."""
    rows = list(_tree_rows(values, origins, depth=0, above=""))
    column = min(_WIDEST_VALUE, max(len(text) for text, _ in rows)) + len(_INDENT)
    for text, origin in rows:
        first, *rest = _folded(origin, column + len("# ")) if origin else [""]
        say(text.ljust(column) if first else text, (f"# {first}" if first else "", "dim"))
        for line in rest:
            say(" " * column, (f"# {line}", "dim"))


def _tree_rows(
    values: Mapping[str, Any], origins: Mapping[str, str], *, depth: int, above: str
) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        path, start = above + key, _INDENT * depth + f"{key}:"
        if isinstance(value, Mapping) and value:
            yield start, ""
            yield from _tree_rows(value, origins, depth=depth + 1, above=f"{path}.")
        else:
            yield f"{start} {yaml_value(value)}", origins.get(path, "")


def yaml_value(value: Any) -> str:
    """`value` as YAML on one line.

    >>> yaml_value((0.9, 0.95)), yaml_value(None), yaml_value(True), yaml_value("a: b"), yaml_value("tiny")
    ('[0.9, 0.95]', 'null', 'true', '"a: b"', 'tiny')
    """
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    """Whether YAML reads `text` as that text without quotes: a letter first, and no reserved word."""
    inside = text.replace("builtin:", "").translate(str.maketrans("", "", "._-/"))
    words = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    return inside.isascii() and inside.isalnum() and text[0].isalpha() and text.lower() not in words
