"""What does not fit a job as faults: place, what came, what is allowed, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partrain.errors import Fault, Place
from partrain.spec.forms import Form, forms_at, section_keys
from partrain.spec.keypath import Loc, dotted
from partrain.spec.scalars import EMPTY, shown
from partrain.spec.tree import Tree
from partrain.spec.unknown import meant
from partrain.spec.values import Problem
from partrain.spec.words import allowed_at, nearest

_EXAMPLES: Mapping[Loc, str] = {
    ("version",): "1",
    ("name",): "demo",
    ("model",): "{preset: tiny}",
    ("data",): "{train: builtin:python-source}",
    ("data", "train"): "builtin:python-source",
    ("training",): "{sequence_length: 128, global_batch_size: 32, steps: 120}",
    ("training", "sequence_length"): "128",
    ("training", "global_batch_size"): "32",
}
"""What to write where a required key is missing."""


def misfit_faults(problems: Sequence[Problem], tree: Tree) -> Iterator[tuple[Loc, Fault]]:
    """One fault for every key path of `tree.data` that has a problem, with the path to leave out.

    What an unknown key was probably meant to be becomes doubtful: it is not missing.
    """
    meanings = {
        loc: meant(tuple(map(str, loc[:-1])), str(loc[-1])) for loc, kind in problems if kind == "unknown"
    }
    tree.doubtful |= {
        found.path for found in meanings.values() if found.path and found.path not in tree.places
    }
    for loc, kind in problems:
        if kind == "unknown":
            allowed = ", ".join(section_keys(loc[:-1]))
            yield loc, Fault(dotted(loc), "unknown key", allowed, meanings[loc].fix, tree.keys.get(loc))
        elif kind != "missing":
            yield loc, _wrong_key(loc, tree) if kind == "wrong key" else _wrong(loc, tree)
        elif loc not in tree.doubtful:
            yield loc, _missing(loc, tree)


def fault_at(loc: Loc, message: str, tree: Tree, *, fix: str = "") -> Fault:
    """A fault of the value at `loc`, its allowed values taken from the job's types."""
    return Fault(dotted(loc), message, allowed_at(loc), fix, tree.places.get(loc))


def enclosing_place(loc: Loc, tree: Tree) -> Place | None:
    """Place of the key at `loc`, else of the closest section around it."""
    while loc and loc not in tree.keys:
        loc = loc[:-1]
    return tree.keys.get(loc)


def fix_words(loc: Loc, allowed: tuple[Form, ...], value: Any) -> str:
    """The line to write instead of `value`; empty: nothing that is allowed is near."""
    fix = nearest(allowed, value)
    key = f"{loc[-1]}: " if isinstance(loc[-1], str) else ""
    unquoted = " (without quotes)" if isinstance(value, str) and fix == value.strip() else ""
    return f"{key}{fix}{unquoted}" if fix else ""


def completed(loc: Loc, fault: Fault) -> Fault:
    """`fault` of a value that was wrong before its key was looked at, with what that key says."""
    if not fault.fix and fault.message.startswith(EMPTY):
        example = _EXAMPLES.get(loc)
        fix = f"{loc[-1]}: {example}" if example else "leave out the key for its default"
        fault = replace(fault, fix=fix)
    return fault if fault.allowed else replace(fault, allowed=allowed_at(loc))


def came(value: Any) -> str:
    """What kind of value came, with the value."""
    if isinstance(value, dict):
        return "a section came"
    if isinstance(value, (list, tuple)):
        return "a list came"
    if isinstance(value, str):
        return f"text {shown(value)} came"
    return f"{shown(value)} came"


def _missing(loc: Loc, tree: Tree) -> Fault:
    example = _EXAMPLES.get(loc, "")
    fix = f"{loc[-1]}: {example}" if example else ""
    return Fault(dotted(loc), "missing", allowed_at(loc), fix, enclosing_place(loc, tree))


def _wrong_key(loc: Loc, tree: Tree) -> Fault:
    return Fault(
        dotted(loc),
        f"{shown(loc[-1])} came as a name",
        "letters, digits and `_`, no digit first",
        "",
        tree.keys.get(loc),
    )


def _wrong(loc: Loc, tree: Tree) -> Fault:
    value = _at(tree.data, loc)
    if isinstance(value, list) and any(form.kind is tuple for form in forms_at(loc)):
        return fault_at(loc, f"a list of {len(value)} came", tree)
    variables = tree.origins.get(loc, "").partition(" (")[2].rstrip(")")
    source = f" from {variables}" if variables else ""
    return fault_at(loc, came(value) + source, tree, fix=fix_words(loc, forms_at(loc), value))


def _at(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data
