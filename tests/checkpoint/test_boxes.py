"""Geometry of what ranks hold, against a tensor that is written out."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from partrain.checkpoint.boxes import Box, Range, meetings, numel, ranges, tile


def elements(box: Box) -> list[tuple[int, ...]]:
    """Indices of a box, row by row."""
    return list(product(*(range(first, end) for first, end in box)))


@st.composite
def ranges_of_a_tensor(draw: st.DrawFn, dims: int) -> Range:
    bounds = [sorted(draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))) for _ in range(dims)]
    box = tuple((first, end + 1) for first, end in bounds)
    start, stop = sorted(draw(st.tuples(*[st.integers(0, numel(box))] * 2)))
    return Range(box, start, stop)


pairs = st.integers(1, 3).flatmap(lambda dims: st.tuples(*[ranges_of_a_tensor(dims)] * 2))


@given(pairs)
def test_a_range_is_its_boxes_in_order(pair: tuple[Range, Range]) -> None:
    held = pair[0]
    parts = [index for box in ranges(*held) for index in elements(box)]
    assert parts == elements(held.box)[held.start : held.stop]


@given(pairs)
def test_ranges_meet_in_what_both_hold_and_each_element_is_found_in_both(pair: tuple[Range, Range]) -> None:
    one, other = pair
    flat = [elements(held.box)[held.start : held.stop] for held in pair]
    found = []
    for mine, theirs, common in meetings(one, other):
        for index in elements(common):
            for at, values in zip((mine, theirs), flat, strict=True):
                assert values[at.offset + elements(at.box).index(index)] == index
            found.append(index)
    assert sorted(found) == sorted(set(flat[0]) & set(flat[1]))
    assert len(found) == len(set(found))


def test_boxes_tile_a_tensor_or_do_not() -> None:
    halves: list[Box] = [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    assert tile(halves, (4, 3))
    assert not tile(halves[:1], (4, 3))
    assert not tile([((0, 2), (0, 3)), ((1, 3), (0, 3))], (4, 3))  # as many elements, two of them twice
    assert not tile([((0, 2), (0, 3)), ((3, 5), (0, 3))], (4, 3))
    assert tile([((0, 4), (0, 1)), ((0, 4), (1, 3))], (4, 3))
