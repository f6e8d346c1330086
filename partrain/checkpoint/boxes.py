"""Boxes of a tensor, and the flat ranges in them that ranks hold.

A box is (first, end) of each dim. A rank of a tensor group holds a box of a weight; with ZeRO each replica
holds a range of that box, counted row by row. Such a range is itself a few boxes, and what two ranks hold
in common is the overlap of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

Box = tuple[tuple[int, int], ...]


class Range(NamedTuple):
    """Elements `start` to `stop` - 1 of a box, counted row by row."""

    box: Box
    start: int
    stop: int


class Located(NamedTuple):
    """A box whose elements lie in a flat range from `offset`."""

    offset: int
    box: Box


def whole(shape: tuple[int, ...]) -> Box:
    """The box that is all of a tensor."""
    return tuple((0, size) for size in shape)


def numel(box: Box) -> int:
    """Elements of a box.

    >>> numel(((2, 4), (0, 3)))
    6
    """
    return prod(end - first for first, end in box)


def shape_of(box: Box) -> tuple[int, ...]:
    """Sizes of a box's dims."""
    return tuple(end - first for first, end in box)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes of a tensor have in common; None: nothing.

    >>> overlap(((0, 4), (0, 2)), ((3, 8), (1, 6)))
    ((3, 4), (1, 2))
    """
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(first < end for first, end in common) else None


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where `box` lies in a tensor that holds `outer`."""
    return tuple(slice(a - zero, b - zero) for (a, b), (zero, _) in zip(box, outer, strict=True))


def ranges(box: Box, start: int, stop: int) -> Iterator[Box]:
    """The elements `start` to `stop` - 1 of `box`, counted row by row, as boxes in that order.

    Elements 1 to 6 of 3 rows of 3: the end of the first row, the second row, the first of the third.

    >>> list(ranges(((4, 7), (0, 3)), 1, 7))
    [((4, 5), (1, 3)), ((5, 6), (0, 3)), ((6, 7), (0, 1))]
    """
    if start >= stop:
        return
    zero = box[0][0]
    if len(box) == 1:
        yield ((zero + start, zero + stop),)
        return
    rest = box[1:]
    size = numel(rest)
    first, before = divmod(start, size)
    last, after = divmod(stop, size)
    if first == last:
        yield from (((zero + first, zero + first + 1), *part) for part in ranges(rest, before, after))
        return
    if before:
        yield from (((zero + first, zero + first + 1), *part) for part in ranges(rest, before, size))
        first += 1
    if first < last:
        yield ((zero + first, zero + last), *rest)
    yield from (((zero + last, zero + last + 1), *part) for part in ranges(rest, 0, after))


def meetings(one: Range, other: Range) -> Iterator[tuple[Located, Located, Box]]:
    """What two ranges of a tensor have in common, box by box: where it lies in either, and the box.

    The second row of two columns, held by one rank as a range of rows, by another as its left column:

    >>> list(meetings(Range(((0, 2), (0, 2)), 2, 4), Range(((0, 2), (0, 1)), 0, 2)))
    [(Located(offset=0, box=((1, 2), (0, 2))), Located(offset=0, box=((0, 2), (0, 1))), ((1, 2), (0, 1)))]
    """
    if overlap(one.box, other.box) is None:
        return
    theirs = list(_located(other))
    for mine in _located(one):
        for their in theirs:
            common = overlap(mine.box, their.box)
            if common is not None:
                yield mine, their, common


def _located(held: Range) -> Iterator[Located]:
    offset = 0
    for part in ranges(*held):
        yield Located(offset, part)
        offset += numel(part)


def tile(boxes: list[Box], shape: tuple[int, ...]) -> bool:
    """Whether boxes of a tensor of `shape` hold each of its elements once."""
    inside = all(overlap(box, whole(shape)) == box for box in boxes)
    if not inside or sum(map(numel, boxes)) != prod(shape):
        return False
    ordered = sorted(boxes)
    return not any(overlap(one, other) for i, one in enumerate(ordered) for other in _meeting(ordered, i))


def _meeting(ordered: list[Box], i: int) -> Iterator[Box]:
    """The later boxes whose first dim meets that of box `i`."""
    end = ordered[i][0][1] if ordered[i] else 1
    for other in ordered[i + 1 :]:
        if other and other[0][0] >= end:
            return
        yield other
