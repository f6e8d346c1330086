"""Plain values (those of JSON) to frozen dataclasses and back, by the annotations of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from partrain.errors import escaped
from partrain.spec.forms import Form, fits, forms, item_forms, key_of, keys_of
from partrain.spec.keypath import Loc, dotted

T = TypeVar("T")
_MOST_SHOWN = 20


class Problem(NamedTuple):
    """One thing that does not fit, and where."""

    loc: Loc
    kind: Literal["unknown", "missing", "wrong", "wrong key"]
    """Of the key: unknown, missing, or misspelt in a mapping of names; else the value is wrong."""


class Misfit(ValueError):
    """The values are not those of the class; `problems` has all that is wrong, one for a key path."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        found = [f"{escaped(dotted(loc)) or 'all'}: {kind}" for loc, kind in problems[:_MOST_SHOWN]]
        more = [f"and {len(problems) - _MOST_SHOWN} more"] if len(problems) > _MOST_SHOWN else []
        super().__init__("; ".join(found + more))


def read(kind: type[T], value: object) -> T:
    """The `kind` that `value` stands for, what is left out at its default.

    Nothing is converted but a whole number where a number is wanted. Raises Misfit.

    >>> read(tuple[float, ...], [1, 2.5])
    (1.0, 2.5)
    """
    problems: list[Problem] = []
    found = _read(forms(kind), value, (), problems)
    if problems:
        raise Misfit(problems)
    return found  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """`value` as JSON has it: the inverse of `read`.

    >>> plain({"betas": (0.9, 0.95)})
    {'betas': [0.9, 0.95]}
    """
    if is_dataclass(value):
        return {key_of(key.name): plain(getattr(value, key.name)) for key in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _read(allowed: tuple[Form, ...], value: Any, loc: Loc, problems: list[Problem]) -> Any:
    """The value read, or anything at all once there are problems."""
    for form in allowed:
        if form.is_section and isinstance(value, dict):
            return _section(form.kind, value, loc, problems)
        if form.kind is dict and isinstance(value, dict):
            return _mapping(form, value, loc, problems)
        if form.kind is tuple and isinstance(value, list) and form.length in (None, len(value)):
            return tuple(
                _read(item_forms(form, i), item, (*loc, i), problems) for i, item in enumerate(value)
            )
        if fits(form, value):
            return float(value) if form.kind is float else value
    problems.append(Problem(loc, "wrong"))
    return None


def _section(section: type, value: Mapping[str, Any], loc: Loc, problems: list[Problem]) -> Any:
    keys = keys_of(section)
    known = {
        key.field: _read(key.forms, value[name], (*loc, name), problems)
        for name, key in keys.items()
        if name in value
    }
    problems += [Problem((*loc, name), "unknown") for name in value if name not in keys]
    missing = [name for name in keys if name not in value and keys[name].default is MISSING]
    problems += [Problem((*loc, name), "missing") for name in missing]
    return None if missing else section(**known)


def _mapping(form: Form, value: Mapping[str, Any], loc: Loc, problems: list[Problem]) -> dict[str, Any]:
    names, items = (forms(annotation) for annotation in form.items)
    wrong = {name for name in value if not any(fits(kind, name) for kind in names)}
    problems += [Problem((*loc, name), "wrong key") for name in value if name in wrong]
    return {
        name: _read(items, item, (*loc, name), problems) for name, item in value.items() if name not in wrong
    }
