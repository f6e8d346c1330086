"""YAML text as plain values, with the place and the origin of each.

Built from PyYAML's events, so that an unending file, a deep one or one full of aliases is refused at its
first wrong event, before anything is built from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import yaml

from partrain.errors import Fault, Place
from partrain.spec.keypath import Loc, dotted
from partrain.spec.scalars import BadScalar, from_variables, shown, spelled, substitute, typed

MAX_DEPTH = 32
MAX_VALUES = 2_000
MAX_KEY = 100
_LINE_END = re.compile(r"\r\n|\r|\n")
_LEFT_OUT = object()


class Mark(Protocol):
    """Where an event begins or ends, counted from 0."""

    line: int
    column: int


@dataclass
class Tree:
    """Values of a job by key, faulty ones left out, with their places; filled while it is read."""

    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Loc, Place] = field(default_factory=dict)
    """Place of each key; of the whole job: its first line."""
    places: dict[Loc, Place] = field(default_factory=dict)
    """Place of each value; of a mapping or list under a key: place of that key."""
    origins: dict[Loc, str] = field(default_factory=dict)
    faults: list[tuple[Loc, Fault]] = field(default_factory=list)
    doubtful: set[Loc] = field(default_factory=set)
    """What was left out."""


class Unreadable(Exception):
    """The text cannot be read as YAML from here on; `args[0]` is the Fault."""


@dataclass(frozen=True)
class Origin:
    """Where a text stands: a file, or one option."""

    source: str
    lines: tuple[str, ...] = ()
    option: Place | None = None
    """The place of everything in an option."""

    def span(self, event: yaml.Event) -> Place:
        """The place of a scalar or key, or of the bracket that begins a list or section."""
        return self.place(event.start_mark, event.end_mark)

    def place(self, start: Mark | None, end: Mark | None = None) -> Place:
        """The place from `start` to `end`, or to the end of the line where it begins."""
        if self.option is not None:
            return self.option
        assert start is not None, "PyYAML gives every event a mark"
        text = self.lines[start.line] if start.line < len(self.lines) else ""
        stop = end.column if end is not None and end.line == start.line else len(text)
        return Place(self.source, start.line + 1, start.column + 1, max(1, stop - start.column), text)

    def words(self, place: Place, names: tuple[str, ...]) -> str:
        """Where a value comes from: `job.yaml:7 (${STEPS})`."""
        where = f"{place.source}:{place.line}" if place.line else "--set"
        return where + (f" ({spelled(names)})" if names else "")


def file_origin(text: str, source: str) -> Origin:
    """The origin of all that stands in the file `source`."""
    return Origin(source, tuple(_LINE_END.split(text)))


def read_mapping(text: str, origin: Origin, environ: Mapping[str, str]) -> Tree:
    """The job in `text`. Raises Unreadable where it is no YAML mapping."""
    reader = _Reader(origin, environ, _events(text, origin))
    first = reader.document()
    if isinstance(first, yaml.ScalarEvent) and first.value == "" and first.style is None:
        raise Unreadable(_empty_fault(text, origin))
    if not isinstance(first, yaml.MappingStartEvent):
        came = "a list" if isinstance(first, yaml.SequenceStartEvent) else "a single value"
        place = origin.place(first.start_mark)
        raise Unreadable(
            Fault("", f"{came} came at the top level", "sections: `key: value` lines", "version: 1", place)
        )
    reader.tree.keys[()] = Place(origin.source, 1, 1, 1, origin.lines[0])
    reader.tree.data = reader.value((), first)
    reader.end()
    return reader.tree


def read_value(text: str, loc: Loc, origin: Origin, environ: Mapping[str, str]) -> tuple[Any, Tree]:
    """The value in `text`, with a tree of what belongs to it; the value is absent from a faulty one."""
    reader = _Reader(origin, environ, _events(text, origin))
    first = reader.document()
    assert origin.option is not None
    reader.tree.keys[loc] = reader.tree.places[loc] = origin.option
    value = reader.value(loc, first)
    reader.end()
    if value is _LEFT_OUT:
        reader.tree.doubtful.add(loc)
    return value, reader.tree


def is_left_out(value: object) -> bool:
    """Whether `value` stands for a faulty one."""
    return value is _LEFT_OUT


def _empty_fault(text: str, origin: Origin) -> Fault:
    came, place = "an empty file", Place(origin.source)
    if text.strip():
        came, place = "only comments", Place(origin.source, 1, 1, 1, origin.lines[0])
    return Fault("", f"{came} came", "a job", "`partrain init` writes one", place)


def _too_much(loc: Loc, limit: str, place: Place) -> Fault:
    return Fault(dotted(loc[:3]), f"{limit} came: this is no job file", place=place)


def _events(text: str, origin: Origin) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        from partrain.spec.syntax import syntax_fault  # only for text that is no YAML

        raise Unreadable(syntax_fault(error, origin.place)) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # PyYAML names no place for characters that it refuses, nor for an escape like "\UFFFFFFFF".
        place = origin.option or Place(origin.source)
        message = "a character or an escape came that YAML does not have"
        raise Unreadable(Fault("", message, "printable text", place=place)) from None


@dataclass
class _Reader:
    """Walks the events of one document and fills a tree."""

    origin: Origin
    environ: Mapping[str, str]
    events: Iterator[yaml.Event]
    tree: Tree = field(default_factory=Tree)
    num_values: int = 0
    shared: list[tuple[Loc, str, Place]] = field(default_factory=list)
    """Anchors, aliases and merge keys: one fault together, since one file may have a million."""

    def document(self) -> yaml.Event:
        """The first event of the first document."""
        for event in self.events:
            if not isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent)):
                break
        if isinstance(event, yaml.StreamEndEvent):
            return yaml.ScalarEvent(None, None, (True, False), "", event.start_mark, event.end_mark)
        return event

    def end(self) -> None:
        """Notes what was shared among values, and a second document."""
        if self.shared:
            loc, message, place = self.shared[0]
            more = f", and {len(self.shared) - 1} more of the kind" if len(self.shared) > 1 else ""
            self.fault(loc, message + more, place, _ONE_PLACE, "write each value where it belongs")
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                place = self.origin.span(event)
                self.fault((), "a second document begins", place, "one job a file", "a file of its own")
                return

    def fault(self, loc: Loc, message: str, place: Place, allowed: str = "", fix: str = "") -> None:
        self.tree.faults.append((loc, Fault(dotted(loc), message, allowed, fix, place)))

    def value(self, loc: Loc, event: yaml.Event) -> Any:
        """The value that begins with `event`, or the mark of one left out."""
        self.num_values += 1
        place = self.origin.span(event)
        if len(loc) > MAX_DEPTH or self.num_values > MAX_VALUES:
            limit = (
                f"deeper than {MAX_DEPTH} levels" if len(loc) > MAX_DEPTH else f"{MAX_VALUES} values and more"
            )
            raise Unreadable(_too_much(loc, limit, place))
        if isinstance(event, yaml.AliasEvent):
            self.shared.append((loc, f"an alias came: {shown(event.anchor)}", place))
            return _LEFT_OUT
        assert isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent))
        if event.anchor is not None:
            self.shared.append((loc, f"an anchor came: {shown(event.anchor)}", place))
        if event.tag is not None:
            self.fault(
                loc,
                f"a tag came: {shown(event.tag)}",
                place,
                "plain values, lists and sections",
                "leave it out",
            )
        if isinstance(event, yaml.ScalarEvent):
            content = self.scalar(loc, event, place)
        else:
            content = self.mapping(loc) if isinstance(event, yaml.MappingStartEvent) else self.sequence(loc)
        return content if event.tag is None else _LEFT_OUT

    def scalar(self, loc: Loc, event: yaml.ScalarEvent, place: Place) -> Any:
        self.tree.places[loc] = place
        names: tuple[str, ...] = ()
        try:
            text, names = substitute(event.value, self.environ)
            self.tree.origins[loc] = self.origin.words(place, names)
            return typed(text, plain=event.style is None)
        except BadScalar as error:
            self.fault(loc, error.args[0] + from_variables(names), place, fix=error.args[1])
            return _LEFT_OUT

    def sequence(self, loc: Loc) -> Any:
        items: list[Any] = []
        for event in iter(self.next_item, None):
            item = (*loc, len(items))
            self.tree.places[item] = self.origin.span(event)
            items.append(self.value(item, event))
        return _LEFT_OUT if any(item is _LEFT_OUT for item in items) else items

    def next_item(self) -> yaml.Event | None:
        event = next(self.events)
        return None if isinstance(event, yaml.CollectionEndEvent) else event

    def mapping(self, loc: Loc, entries: dict[str, Any] | None = None) -> dict[str, Any]:
        """The entries of a mapping, over those that an earlier one of the same key gave."""
        entries = {} if entries is None else entries
        for event in iter(self.next_item, None):
            self.entry(loc, self.key(loc, event), event, entries)
        return entries

    def key(self, loc: Loc, event: yaml.Event) -> str | None:
        """The key that begins with `event`; None when it is none."""
        place = self.origin.span(event)
        if not isinstance(event, yaml.ScalarEvent):
            self.fault(loc, "a list, section or alias came as a key", place, "a name as key")
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self.skip()
            return None
        if event.value == "<<" and event.style is None:
            self.shared.append((loc, "a merge key came: <<", place))
            return None
        if event.anchor is not None or event.tag is not None:
            self.fault(loc, "an anchor or tag came before a key", place, "a name as key", event.value)
        try:
            name = typed(event.value, plain=event.style is None)
        except BadScalar:
            name = None
        if not isinstance(name, str) or len(name) > MAX_KEY:
            self.fault(loc, f"{shown(event.value)} came as a key", place, "a name as key")
            return None
        return name

    def skip(self) -> None:
        """Passes over the rest of a list or mapping."""
        depth = 1
        while depth:
            event = next(self.events)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise Unreadable(
                    _too_much((), f"deeper than {MAX_DEPTH} levels", self.origin.place(event.start_mark))
                )

    def entry(self, loc: Loc, name: str | None, key: yaml.Event, entries: dict[str, Any]) -> None:
        """Reads the value of `name` into `entries`, unless it is faulty or given before."""
        event = next(self.events)
        if name is None:
            if isinstance(event, yaml.CollectionStartEvent):
                self.skip()
            return
        entry, place = (*loc, name), self.origin.span(key)
        earlier = self.tree.keys.get(entry)
        if earlier is not None:
            self.fault(entry, f"given twice, first in line {earlier.line}", place, "one place for each value")
            if isinstance(entries.get(name), dict) and isinstance(event, yaml.MappingStartEvent):
                self.mapping(entry, entries[name])
                return
        self.tree.keys[entry] = self.tree.places[entry] = place
        content = self.value(entry, event)
        if earlier is None and content is not _LEFT_OUT:
            entries[name] = content
        else:
            entries.pop(name, None)
            self.tree.doubtful.add(entry)


_ONE_PLACE = "one place for each value: no anchors, aliases or merge keys"


def leave_out(tree: Tree, loc: Loc) -> None:
    """Takes the faulty value at `loc` out of the tree's data: a list goes as a whole."""
    while loc and isinstance(loc[-1], int):
        loc = loc[:-1]
    holder: Any = tree.data
    for part in loc[:-1]:
        holder = holder.get(part) if isinstance(holder, dict) else None
    if loc:
        tree.doubtful.add(loc)
    if loc and isinstance(holder, dict):
        holder.pop(loc[-1], None)
