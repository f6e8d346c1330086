"""What a key of a job or a plan may hold: the annotations of its dataclasses, as values."""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from partrain.spec.job import JobSpec
from partrain.spec.keypath import Loc
from partrain.spec.section import UNBOUNDED, Bounds

_SINGLE = (bool, int, float, str, types.NoneType)


@dataclass(frozen=True)
class Form:
    """One kind of value that a key may hold."""

    kind: Any
    """A type: of a single value, `tuple`, `dict`, a section or `Any`; `Literal`: only `choices` may come."""
    choices: tuple[Any, ...] = ()
    bounds: Bounds = UNBOUNDED
    items: tuple[Any, ...] = ()
    """Annotations of a list's items, or of a mapping's keys and values."""

    @property
    def length(self) -> int | None:
        """Items that a list must have; None: any number."""
        return None if self.items[-1] is Ellipsis else len(self.items)

    @property
    def is_section(self) -> bool:
        """Whether it is a mapping with keys of its own."""
        return is_dataclass(self.kind)


@dataclass(frozen=True)
class Key:
    """A key of a section."""

    field: str
    """Name of its field: `key_of` says how they differ."""
    forms: tuple[Form, ...]
    default: Any
    """MISSING: there is none, the key is required."""


def forms(annotation: Any, bounds: Bounds = UNBOUNDED) -> tuple[Form, ...]:
    """The kinds of value that `annotation` allows.

    >>> [form.kind for form in forms(Literal["auto"] | bool | None)]
    [typing.Literal, <class 'bool'>, <class 'NoneType'>]
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return forms(arguments[0], next(item for item in arguments if isinstance(item, Bounds)))
    if origin in (typing.Union, types.UnionType):
        return tuple(form for arm in arguments for form in forms(arm))
    if origin is Literal:
        return (Form(Literal, choices=arguments),)
    return (Form(origin or annotation, bounds=bounds, items=arguments),)


def key_of(field: str) -> str:
    """The key that a field stands for: a word that Python keeps for itself has an underscore as a field.

    >>> key_of("from_"), key_of("head_size")
    ('from', 'head_size')
    """
    return field.removesuffix("_")


@cache
def keys_of(section: type) -> Mapping[str, Key]:
    """The keys of a section, in order."""
    annotations = typing.get_type_hints(section, include_extras=True)
    return {
        key_of(key.name): Key(
            key.name,
            forms(annotations[key.name]),
            key.default if key.default_factory is MISSING else key.default_factory(),
        )
        for key in fields(section)
    }


def item_forms(form: Form, index: int) -> tuple[Form, ...]:
    """The kinds of value that an item of a list may be.

    >>> item_forms(*forms(tuple[int, ...]), 7)[0].kind
    <class 'int'>
    """
    return forms(form.items[0 if form.length is None else index])


@lru_cache(maxsize=256)
def forms_at(loc: Loc) -> tuple[Form, ...]:
    """The kinds of value that the key path `loc` of a job may hold; none for an unknown path."""
    found: tuple[Form, ...] = (Form(JobSpec),)
    for part in loc:
        found = tuple(form for parent in found for form in _inside(parent, part))
    return found


def _inside(form: Form, part: str | int) -> tuple[Form, ...]:
    if form.is_section:
        key = keys_of(form.kind).get(str(part))
        return key.forms if key else ()
    if form.kind is tuple and isinstance(part, int):
        return item_forms(form, part) if form.length is None or part < form.length else ()
    return forms(form.items[1]) if form.kind is dict else ()


def section_keys(loc: Loc) -> tuple[str, ...]:
    """The keys that the section at `loc` may have; none where there is no section."""
    return tuple(key for form in forms_at(loc) if form.is_section for key in keys_of(form.kind))


@lru_cache(maxsize=1)
def key_paths() -> tuple[tuple[str, ...], ...]:
    """Every key path of a job, sections before what is in them."""
    return tuple(_paths(()))


def _paths(loc: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key in section_keys(loc):
        yield (*loc, key)
        yield from _paths((*loc, key))


def fits(form: Form, value: object) -> bool:
    """Whether a single value is of this form; a whole number is a number too, true and false are not.

    >>> count, *_ = forms_at(("parallel", "tp"))
    >>> [fits(count, value) for value in (2, 0, 2.0, True)]
    [True, False, False, False]
    """
    if form.kind is Literal:
        return any(value == choice and type(value) is type(choice) for choice in form.choices)
    if form.kind is float and type(value) in (int, float):
        return _is_within(form.bounds, value)
    is_kind = form.kind in _SINGLE and type(value) is form.kind
    return form.kind is Any or (is_kind and _is_within(form.bounds, value))


def _is_within(bounds: Bounds, value: Any) -> bool:
    if isinstance(value, str):
        matches = bounds.pattern is None or re.fullmatch(bounds.pattern, value) is not None
        return matches and len(value) >= (bounds.min_length or 0)
    if not isinstance(value, (int, float)):
        return True
    return (
        abs(value) <= sys.float_info.max
        and (bounds.ge is None or value >= bounds.ge)
        and (bounds.gt is None or value > bounds.gt)
        and (bounds.le is None or value <= bounds.le)
        and (bounds.lt is None or value < bounds.lt)
    )
