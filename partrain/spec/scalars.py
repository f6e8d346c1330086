"""What a single value of a job file is: a number, a boolean or text, by rules with no surprises.

YAML 1.1 reads `on` as true, `1:30` as ninety, `010` as eight and `1e-4` as text. Here numbers are decimal,
only true and false are booleans, and all else is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from partrain.errors import escaped

Scalar = bool | int | float | str

EMPTY = "empty value"
NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LARGEST = 2**63 - 1
_LONGEST = 16_384
"""Characters of a value at most: more than any path or search path, less than what slows the reading."""
_SHOWN = 80
"""Characters of a faulty value that are shown."""


class BadScalar(ValueError):
    """A value that is wrong whatever the key; `args` are the message and the fix."""


class Substituted(NamedTuple):
    """Text with its variables replaced, and their names."""

    text: str
    names: tuple[str, ...]


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """`text` with `${NAME}` and `${NAME:-default}` replaced from `environ`; `$${` stands for `${`.

    >>> substitute("${A}/${B:-x}/$${C}", {"A": "a"})
    Substituted(text='a/x/${C}', names=('A', 'B'))

    Raises BadScalar on a variable that is not set, and on text too long for a value.
    """
    names: list[str] = []

    def value(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if match.group() == "$${":
            return "${"
        if name is None:
            raise BadScalar(
                "`${` begins a variable, and none follows", "${NAME}, or $${ for the two characters"
            )
        names.append(name)
        found = environ.get(name, default)
        if found is None:
            fix = f"set it, or give a default: ${{{name}:-...}}"
            raise BadScalar(f"the environment variable {name} is not set", fix)
        return _short(found)

    replaced = _VARIABLE.sub(value, text) if "${" in _short(text) else text
    return Substituted(_short(replaced), tuple(dict.fromkeys(names)))


def _short(text: str) -> str:
    """`text`, if it is no longer than a value may be."""
    if len(text) > _LONGEST:
        raise BadScalar(f"a value of more than {_LONGEST} characters came", "")
    return text


def spelled(names: tuple[str, ...]) -> str:
    """Variables as they are written.

    >>> spelled(("A", "B"))
    '${A}, ${B}'
    """
    return ", ".join(f"${{{name}}}" for name in names)


def from_variables(names: tuple[str, ...]) -> str:
    """The end of a message over a value that came from variables."""
    return f" from {spelled(names)}" if names else ""


def typed(text: str, *, plain: bool) -> Scalar:
    """The value that `text` stands for; text in quotes (not `plain`) is always text.

    >>> [typed(t, plain=True) for t in ("1e-4", ".5", "50", "on", "True", "010", "1_000", "1:30")]
    [0.0001, 0.5, 50, 'on', True, '010', '1_000', '1:30']

    Raises BadScalar on an empty value, on a number too large to be exact, and on control characters.
    """
    if CONTROL.search(text):
        raise BadScalar(f"a control character came: {shown(text)}", "")
    if not plain:
        return text
    if text in NULLS:
        raise BadScalar(EMPTY, "")
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INT.fullmatch(text):
        if len(text) > len(str(_LARGEST)) + 1 or abs(int(text)) > _LARGEST:
            raise BadScalar(f"a number beyond 64 bits came: {shown(text)}", "")
        return int(text)
    if _FLOAT.fullmatch(text):
        if not math.isfinite(float(text)):
            raise BadScalar(f"a number too large for 64 bits came: {shown(text)}", "")
        return float(text)
    return text


def shown(value: object) -> str:
    """`value` as a message shows it: text in quotes, cut, nothing in it that a terminal acts on."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
        return f'"{escaped(text)}"'
    return f"{value}"
