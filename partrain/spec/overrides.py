"""`--set key.path=value`: values given on the command line, over those of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partrain.errors import Fault, Place
from partrain.spec.keypath import Loc, dotted
from partrain.spec.scalars import shown
from partrain.spec.tree import Origin, Tree, Unreadable, is_left_out, leave_out, read_value

_FORM = "--set key.path=value"
_SHOWN = 80


class _Refused(Exception):
    """The option cannot be applied; `args[0]` is the Fault."""


def apply_overrides(tree: Tree, overrides: Sequence[str], environ: Mapping[str, str]) -> None:
    """Puts each of `overrides` into `tree`, in order; what is faulty joins the tree's faults."""
    for option in overrides:
        place = Place(f"--set {option if len(option) <= _SHOWN else option[:_SHOWN] + '…'}")
        try:
            _apply(tree, option, place, environ)
        except (_Refused, Unreadable) as error:
            tree.faults.append(((), error.args[0]))


def _apply(tree: Tree, option: str, place: Place, environ: Mapping[str, str]) -> None:
    path, equals, text = option.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        message = "no `=` came" if not equals else "an empty key came" if path else "no key came before `=`"
        raise _Refused(Fault("", message, _FORM, "--set training.steps=50", place))
    parent, loc = _descend(tree, parts, place)
    value, given = read_value(text, loc, Origin(place.source, option=place), environ)
    _forget(tree, loc)
    tree.keys |= given.keys
    tree.places |= given.places
    tree.origins |= given.origins
    tree.faults += given.faults
    tree.doubtful |= given.doubtful
    if is_left_out(value):
        leave_out(tree, loc)
    else:
        parent[loc[-1]] = value


def _descend(tree: Tree, parts: list[str], place: Place) -> tuple[Any, Loc]:
    """What holds the value at `parts`, made where it is missing, and the value's key path."""
    holder: Any = tree.data
    loc: Loc = ()
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        key = _key(holder, part, (*loc, part), place)
        loc = (*loc, key)
        if last:
            break
        if isinstance(holder, dict) and key not in holder:
            _forget(tree, loc)
            holder[key] = {}
            tree.keys[loc] = tree.places[loc] = place
        holder = holder[key]
        if not isinstance(holder, (dict, list)):
            message = f"{dotted(loc)} is the value {shown(holder)}, not a section"
            raise _Refused(Fault(dotted(loc), message, _FORM, f"--set {dotted(loc)}=...", place))
    return holder, loc


def _key(holder: Any, part: str, loc: Loc, place: Place) -> str | int:
    """`part` as a key of `holder`: an index where it is a list."""
    if isinstance(holder, dict):
        return part
    if part.isdecimal() and part.isascii() and int(part) < len(holder):
        return int(part)
    allowed = f"an index from 0 to {len(holder) - 1}" if holder else "the whole list: the one given is empty"
    raise _Refused(Fault(dotted(loc), f"no item {shown(part)} in the list", allowed, "", place))


def _forget(tree: Tree, loc: Loc) -> None:
    """Drops what the tree knows of the value at `loc` and of all in it."""
    for table in (tree.keys, tree.places, tree.origins):
        for known in [k for k in table if k[: len(loc)] == loc]:
            del table[known]
    tree.faults[:] = [(at, fault) for at, fault in tree.faults if not at or at[: len(loc)] != loc]
    tree.doubtful -= {k for k in tree.doubtful if k[: len(loc)] == loc}
