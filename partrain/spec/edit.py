"""Values put into the text of a job file; comments and everything else stay byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml


class CannotEdit(ValueError):
    """The text cannot be changed so; `args[0]` says why."""


@dataclass(frozen=True)
class _Edit:
    """`new` in place of the characters from `start` to `end`."""

    start: int
    end: int
    new: str


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """`text`, a job in YAML, with a number, truth value or name at each key path.

    A value that is there is replaced where it stands; a key that is not is added to its section, in the
    section's own style, and a section that is not is added at the end. Raises CannotEdit.

    >>> print(edited("training: {steps: 5} # short\\n", {"training.seed": 2, "parallel.pp": 2}), end="")
    training: {steps: 5, seed: 2} # short
    parallel:
      pp: 2
    """
    for path, value in changes.items():
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise CannotEdit("the file holds no sections")
        edit = _edit(text, root, path.split("."), value)
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def _edit(text: str, section: yaml.MappingNode, keys: list[str], value: Any) -> _Edit:
    """The edit that puts `value` at the path `keys` inside `section`."""
    key, *rest = keys
    found = next((node for name, node in section.value if name.value == key), None)
    if found is None:
        return _addition(text, section, keys, value)
    if rest and not isinstance(found, yaml.MappingNode):
        raise CannotEdit(f"line {found.start_mark.line + 1}: {key} is no section")
    if rest:
        return _edit(text, found, rest, value)
    start, end = found.start_mark.index, found.end_mark.index
    where = f"line {found.start_mark.line + 1}: the value of {key}"
    if not isinstance(found, yaml.ScalarNode) or found.start_mark.line != found.end_mark.line:
        raise CannotEdit(f"{where} stands in several lines")
    if "${" in text[start:end]:
        raise CannotEdit(f"{where} comes from a variable: {text[start:end]}")
    return _Edit(start, end, _scalar(value))


def _addition(text: str, section: yaml.MappingNode, keys: list[str], value: Any) -> _Edit:
    """The edit that adds what `section` does not have."""
    if section.flow_style:
        return _into_braces(text, section, keys, value)
    last = section.value[-1][1]
    at = _end_of_line(text, _end(last))
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * section.start_mark.column
    lines = [f"{indent}{'  ' * depth}{key}:" for depth, key in enumerate(keys)]
    added = newline.join([*lines[:-1], f"{lines[-1]} {_scalar(value)}"])
    return _Edit(at, at, newline + added)


def _into_braces(text: str, section: yaml.MappingNode, keys: list[str], value: Any) -> _Edit:
    quoted = bool(section.value) and section.value[0][0].style == '"'
    names = [json.dumps(key) if quoted else key for key in keys]
    scalar = json.dumps(value) if quoted else _scalar(value)
    inside = f"{names[0]}: " + "".join(f"{{{name}: " for name in names[1:]) + scalar + "}" * (len(names) - 1)
    if not section.value:
        at = section.start_mark.index + 1
        return _Edit(at, at, inside)
    at = section.value[-1][1].end_mark.index
    return _Edit(at, at, f", {inside}")


def _end(node: yaml.Node) -> int:
    """Index after the last character of `node`: the end of a block is known by what it holds."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _end_of_line(text: str, index: int) -> int:
    """Index of the end of the line, its comment too."""
    if index and text[index - 1] == "\n":
        index -= 1  # a block of text ends with its last line
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - 1 if end and text[end - 1] == "\r" else end


def _scalar(value: Any) -> str:
    """A number, truth value or name as YAML."""
    return value if isinstance(value, str) else json.dumps(value)
