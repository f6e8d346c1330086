"""What a key of the job may hold, in words, and the nearest value that it may.

One table over the types and bounds of `JobSpec`: no message is written for a single key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Literal

from partrain.spec.checkpoint import TIME
from partrain.spec.forms import Form, fits, forms_at, item_forms, keys_of
from partrain.spec.keypath import Loc
from partrain.spec.scalars import BadScalar, typed
from partrain.units import nearest_time

_PATTERNS: Mapping[str, str] = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "up to 64 letters, digits, `.`, `_` and `-`, no sign first",
    r"^\S.*$": "a share as 1%, or the path of a token file",
    TIME: "a time in minutes or hours like 30m or 2h",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and `_`, no digit first",
}
_SYNONYMS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}


def allowed_at(loc: Loc) -> str:
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
        kind = "a whole number" if form.kind is int else "a number"
        limits = " ".join(part for part in (kind, _bounds(form)) if part)
        return f"{limits}, {form.bounds.meaning}" if form.bounds.meaning else limits
    if form.kind is str:
        return _PATTERNS.get(form.bounds.pattern or "", "text")
    if form.kind is tuple:
        length = "" if form.length is None else f"{form.length}: "
        return f"a list of {length}{in_words(item_forms(form, 0))}"
    if form.is_section:
        return f"a section of {', '.join(keys_of(form.kind))}"
    if form.kind is dict:
        return "a section of `name: text` lines" if form.items[1] is str else "a section"
    return ""


def _bounds(form: Form) -> str:
    named = (
        ("of at least", form.bounds.ge),
        ("above", form.bounds.gt),
        ("of at most", form.bounds.le),
        ("below", form.bounds.lt),
    )
    return " and ".join(f"{words} {bound:g}" for words, bound in named if bound is not None)


def nearest(found: tuple[Form, ...], value: object) -> str:
    """The nearest value to `value` that is allowed, as it is written in a job file; empty: none is near.

    >>> nearest(forms_at(("training", "steps")), 50.0), nearest(forms_at(("parallel", "tp")), "auot")
    ('50', 'auto')
    """
    if isinstance(value, str):
        return _nearest_to_text(found, value)
    if isinstance(value, (bool, int, float)) and any(
        form.kind is str and not form.bounds.pattern for form in found
    ):
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
    if any(form.bounds.pattern == TIME for form in found):
        return nearest_time(text)
    named = any(form.bounds.pattern in _PATTERNS for form in found)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:63] if named else ""


def _nearest_number(found: tuple[Form, ...], value: float) -> str:
    whole = [form for form in found if form.kind in (int, float)]
    if not whole:
        choices = [c for form in found for c in form.choices if isinstance(c, int)]
        return _plain(min(choices, key=lambda choice: abs(choice - value))) if choices else ""
    form = whole[0]
    if form.kind is int:
        value = round(value)
    if form.bounds.le == 1 and 2 <= value <= 100:
        value = value / 100  # a share, given in percent
    if form.bounds.ge is not None and value < form.bounds.ge:
        value = form.bounds.ge
    if form.bounds.le is not None and value > form.bounds.le:
        value = form.bounds.le
    return _plain(form.kind(value)) if fits(form, form.kind(value)) else ""


def _plain(value: object) -> str:
    """`value` as it is written in a job file."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else f"{value}"
