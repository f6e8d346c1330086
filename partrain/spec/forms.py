"""What a key of the job may hold, in words, and the nearest value that it may.

One table over the types and bounds of `JobSpec`: no message is written for a single key.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic.fields import FieldInfo

from partrain.spec.job import JobSpec
from partrain.spec.scalars import BadScalar, typed
from partrain.spec.section import Section

_PATTERNS: Mapping[str, str] = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "up to 64 letters, digits, `.`, `_` and `-`, no sign first",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and `_`, no digit first",
}
_SYNONYMS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}


@dataclass(frozen=True)
class Form:
    """One kind of value that a key may hold."""

    kind: Any
    """A type; `Literal` when only `choices` may come."""
    choices: tuple[Any, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    pattern: str | None = None
    items: tuple[Any, ...] = ()
    """Annotations of a list's items, or of a mapping's keys and values."""


_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "pattern")


def forms(annotation: Any, metadata: tuple[Any, ...] = ()) -> tuple[Form, ...]:
    """The kinds of value that `annotation` allows; None (a key left out) is not among them.

    >>> forms(Literal["auto"] | bool | None)[0].choices
    ('auto',)
    """
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return forms(inner, (*metadata, *more))
    if origin in (typing.Union, types.UnionType):
        return tuple(form for arm in typing.get_args(annotation) for form in forms(arm, metadata))
    if annotation is types.NoneType:
        return ()
    if origin is Literal:
        return (Form(Literal, choices=typing.get_args(annotation)),)
    flat = [m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
    bounds = {name: getattr(m, name) for m in flat for name in _BOUNDS if getattr(m, name, None) is not None}
    items = typing.get_args(annotation) if origin in (tuple, list, dict) else ()
    return (Form(origin or annotation, items=items, **bounds),)


@lru_cache(maxsize=256)
def forms_at(loc: tuple[str | int, ...]) -> tuple[Form, ...]:
    """The kinds of value that the key path `loc` of a job may hold; none for an unknown path."""
    found: tuple[Form, ...] = (Form(JobSpec),)
    for part in loc:
        found = tuple(form for parent in found for form in _inside(parent, part))
    return found


def _inside(form: Form, part: str | int) -> tuple[Form, ...]:
    if isinstance(form.kind, type) and issubclass(form.kind, Section):
        info = form.kind.model_fields.get(str(part))
        return () if info is None else forms(info.annotation, tuple(info.metadata))
    if isinstance(part, int) and part < len(form.items):
        return forms(form.items[part])
    return forms(form.items[1]) if form.kind is dict else ()


def section_keys(loc: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that the section at `loc` may have; none where there is no section."""
    return tuple(key for form in forms_at(loc) if _is_section(form) for key in form.kind.model_fields)


@lru_cache(maxsize=1)
def key_paths() -> tuple[tuple[str, ...], ...]:
    """Every key path of a job, sections before what is in them."""
    return tuple(_paths(()))


def _paths(loc: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key in section_keys(loc):
        yield (*loc, key)
        yield from _paths((*loc, key))


def _is_section(form: Form) -> bool:
    return isinstance(form.kind, type) and issubclass(form.kind, Section)


def allowed_at(loc: tuple[str | int, ...]) -> str:
    """What `loc` may hold, in words.

    >>> allowed_at(("parallel", "tp")), allowed_at(("training", "optimizer", "betas"))
    ('a whole number of at least 1, or auto', 'a list of 2: a number of at least 0 and below 1')
    """
    return in_words(forms_at(loc))


def in_words(found: tuple[Form, ...]) -> str:
    """The kinds of `found`, the choices of all literals last and together."""
    kinds = [words for form in found if form.kind not in (Literal, bool) and (words := _kind_words(form))]
    named = [
        form.choices if form.kind is Literal else (True, False)
        for form in found
        if form.kind in (Literal, bool)
    ]
    choices = [_plain(choice) for group in named for choice in group]
    return ", or ".join([*kinds, *([_listed(choices)] if choices else [])])


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _kind_words(form: Form) -> str:
    if form.kind in (int, float):
        return " ".join(
            part for part in ("a whole number" if form.kind is int else "a number", _bounds(form)) if part
        )
    if form.kind is str:
        return _PATTERNS.get(form.pattern or "", "text")
    if form.kind is tuple:
        return f"a list of {len(form.items)}: {in_words(forms(form.items[0]))}"
    if form.kind is list:
        return f"a list of {in_words(forms(form.items[0]))}"
    if _is_section(form):
        return f"a section of {', '.join(form.kind.model_fields)}"
    if form.kind is dict:
        return "a section of `name: text` lines" if form.items[1] is str else "a section"
    return ""


def _bounds(form: Form) -> str:
    named = (("of at least", form.ge), ("above", form.gt), ("of at most", form.le), ("below", form.lt))
    return " and ".join(f"{words} {bound:g}" for words, bound in named if bound is not None)


def nearest(found: tuple[Form, ...], value: object) -> str:
    """The nearest value to `value` that is allowed, as it is written in a job file; empty: none is near.

    >>> nearest(forms_at(("training", "steps")), 50.0), nearest(forms_at(("parallel", "tp")), "auot")
    ('50', 'auto')
    """
    if isinstance(value, str):
        return _nearest_to_text(found, value)
    if isinstance(value, (bool, int, float)) and any(form.kind is str and not form.pattern for form in found):
        return f'"{_plain(value)}"'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _nearest_number(found, value)
    return ""


def _nearest_to_text(found: tuple[Form, ...], text: str) -> str:
    bare = re.sub(r"(?<=\d)[_,](?=\d{3}\b)", "", text.strip())
    try:
        value: object = typed(bare, plain=True)
    except BadScalar:
        return ""
    if any(form.kind is bool for form in found) and bare.lower() in _SYNONYMS:
        value = _SYNONYMS[bare.lower()]
    if not isinstance(value, str):
        is_right = any(fits(form, value) for form in found)
        return nearest(found, value) if not is_right else _plain(value) if isinstance(value, bool) else bare
    choices = {_plain(choice).lower(): _plain(choice) for form in found for choice in form.choices}
    if any(form.kind is bool for form in found):
        choices |= {"true": "true", "false": "false"}
    close = difflib.get_close_matches(text.lower(), choices, n=1, cutoff=0.6)
    if close:
        return choices[close[0]]
    named = any(form.pattern in _PATTERNS for form in found)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:63] if named else ""


def _nearest_number(found: tuple[Form, ...], value: float) -> str:
    whole = [form for form in found if form.kind in (int, float)]
    if not whole:
        choices = [c for form in found for c in form.choices if isinstance(c, int)]
        return _plain(min(choices, key=lambda choice: abs(choice - value))) if choices else ""
    form = whole[0]
    if form.kind is int:
        value = round(value)
    if form.ge is not None and value < form.ge:
        value = form.ge
    if form.le is not None and value > form.le:
        value = form.le
    return _plain(form.kind(value)) if fits(form, form.kind(value)) else ""


def fits(form: Form, value: object) -> bool:
    """Whether a single value, or a list of them, is of this form."""
    if isinstance(value, list):
        kinds = forms(form.items[0]) if form.kind is list else ()
        return form.kind is list and all(any(fits(kind, item) for kind in kinds) for item in value)
    if isinstance(value, bool) or form.kind not in (int, float):
        same = type(value) is form.kind and len(str(value)) >= (form.min_length or 0)
        return same or any(value == choice and type(value) is type(choice) for choice in form.choices)
    if not isinstance(value, (int, float)) or (form.kind is int and not isinstance(value, int)):
        return False
    return (
        (form.ge is None or value >= form.ge)
        and (form.gt is None or value > form.gt)
        and (form.le is None or value <= form.le)
        and (form.lt is None or value < form.lt)
    )


def _plain(value: object) -> str:
    """`value` as it is written in a job file."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else f"{value}"
