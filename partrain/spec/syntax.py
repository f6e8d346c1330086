"""What is wrong with text that is no YAML, in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from partrain.errors import Fault, Place
from partrain.spec.tree import Mark


class NoYaml(Protocol):
    """PyYAML's error: while it read `context`, it met `problem`."""

    context: str | None
    problem: str | None

    @property
    def context_mark(self) -> Mark | None:
        """Where the context began."""

    @property
    def problem_mark(self) -> Mark | None:
        """Where it met the problem."""


class _Words(NamedTuple):
    """PyYAML's context and problem, as a pattern, and what to say instead."""

    pattern: str
    message: str
    allowed: str
    fix: str = ""
    at_context: bool = False
    """Mark where the construct began, not where it broke."""


_QUOTE = "put the text in quotes"
_VALUES = "text, numbers, true, false, lists, sections"
_ESCAPES = r"\\, \", \n, \t and the like in double quotes"
_ONE_INDENTATION = "`key: value` lines, all keys of a section at one indentation"
_TABLE = (
    _Words(r"character '\\t'", "a tab came", "spaces only", "a space"),
    _Words(r"quoted scalar.*(?:end of stream|separator)", "this quote is never closed", "", "close it", True),
    _Words(r"quoted scalar.*escape", "an unknown escape came", _ESCAPES, r"\\ for one backslash"),
    _Words(r"character '(.)' that cannot start", "`{0}` cannot begin a value", _VALUES, _QUOTE),
    _Words(r"flow sequence.*expected ','", "`,` or `]` is missing before this", "[a, b]"),
    _Words(r"flow mapping.*expected ','", "`,` or `}` is missing before this", "{key: value, key: value}"),
    _Words(r"flow node", "a value is missing, or a bracket is never closed", "[a, b] or {key: value}"),
    _Words(r"could not find expected ':'", "a key without `:`", "`key: value` lines", "", True),
    _Words(r"mapping values are not allowed", "`:` cannot stand here", _ONE_INDENTATION, _QUOTE),
    _Words(r"sequence entries are not allowed", "a list item cannot begin here", "`- item` lines"),
    _Words(r"mapping keys are not allowed", "`?` cannot begin a value", _VALUES, _QUOTE),
    _Words(r"block mapping.*<block end>", "this fits no section above", _ONE_INDENTATION),
    _Words(r"block collection.*<block end>", "this fits no list above", "`- item` lines at one indentation"),
    _Words(r"<document start>", "text after the end of the job", "one job a file"),
    _Words(r"anchor|alias", "`&` and `*` cannot begin a value", _VALUES, _QUOTE),
    _Words(r"tag", "`!` cannot begin a value", _VALUES, _QUOTE),
    _Words(r"block scalar", "after `|` and `>` the text begins on the next line", "", _QUOTE),
    _Words(r"directive", "`%` cannot begin a line", "`key: value` lines", _QUOTE),
)
_GOES_ON = "a key came where the text of the line above goes on"
_SEPARATE = "indent it as the key above, or end that key with `:`"
_IN_BRACKETS = "a line of its own for each key: without quotes, ${...} cannot stand in [ ] and { }"


def syntax_fault(error: NoYaml, place: Callable[[Mark | None], Place]) -> Fault:
    """The fault that PyYAML's `error` means."""
    said = f"{error.context or ''} {error.problem or ''}"
    at = place(error.problem_mark)
    if "mapping values" in said and ":" not in at.text[: at.column - 1]:
        key = len(at.text) - len(at.text.lstrip())
        return Fault("", _GOES_ON, _ONE_INDENTATION, _SEPARATE, replace(at, column=key + 1))
    for words in _TABLE:
        match = re.search(words.pattern, said)
        if match is not None:
            at = place(error.context_mark if words.at_context else error.problem_mark)
            fix = _IN_BRACKETS if "${" in at.text and "flow" in said else words.fix
            message = words.message.replace("{0}", next(iter(match.groups()), ""))
            opened = place(error.context_mark).line if "flow" in words.pattern else at.line
            if opened != at.line:
                message += f", or the bracket in line {opened} is never closed"
            return Fault("", message, words.allowed, fix, _one(at, whole=words.at_context))
    return Fault("", f"this is no YAML: {error.problem}", "`key: value` lines", "", at)


def _one(place: Place, *, whole: bool) -> Place:
    """`place`, its mark only as long as the word where it begins."""
    if whole or not place.line:
        return place
    word = re.match(r"\S+", place.text[place.column - 1 :])
    return replace(place, length=len(word.group()) if word else 1)
