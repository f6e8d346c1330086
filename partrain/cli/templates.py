"""The jobs to start from, as text: which there are, and one of them with a value replaced."""

from __future__ import annotations

import re
from pathlib import Path

import partrain

NAMES = ("laptop", "one-node", "cluster")

_PACKAGE = Path(partrain.__file__).parent
_FOLDERS = (_PACKAGE / "templates", _PACKAGE.parent / "templates")
"""In an installed package; in a checkout."""


def template(name: str) -> str:
    """The text of a template.

    Raises KeyError for a name that is not in NAMES.
    """
    if name not in NAMES:
        raise KeyError(name)
    folder = next(folder for folder in _FOLDERS if folder.is_dir())
    return (folder / f"{name}.yaml").read_text(encoding="utf-8")


def value_of(text: str, key: str) -> str:
    """What stands at `key`, the first of that name.

    >>> value_of("model:\\n  preset: tiny    # small\\n", "preset")
    'tiny'
    """
    return _line_of(text, key)["value"]


def with_value(text: str, key: str, value: str) -> str:
    """`text` with `value` at `key`, the comment behind it kept in its column where there is room.

    >>> with_value("model:\\n  preset: tiny    # small\\n", "preset", "gpt2-xl")
    'model:\\n  preset: gpt2-xl # small\\n'
    """
    found = _line_of(text, key)
    room = len(found["value"]) + len(found["blanks"])
    line = value.ljust(max(room - 1, len(value))) + " " if found["blanks"] else value
    return text[: found.start("value")] + line + text[found.end("blanks") :]


def _line_of(text: str, key: str) -> re.Match[str]:
    found = re.search(rf"(?m)^ *{key}: (?P<value>\S+)(?P<blanks> *)", text)
    if found is None:
        raise ValueError(f"the template has no {key}")
    return found
