"""One reader for jobs and plans: what it takes, what it refuses, and where."""

import json
import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.spec.section import Bounds, Count
from partrain.spec.values import Misfit, plain, read


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: Annotated[str, Bounds(min_length=1, pattern=r"[a-z]*")]
    size: Count | Literal["auto"] = "auto"
    corners: tuple[Point, ...] = ()
    pair: tuple[int, str] = (1, "one")
    filled: bool | None = None
    tags: dict[Annotated[str, Bounds(pattern="[a-z]+")], int] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    centre: Point | None = None


def problems(kind: Any, value: object) -> list[tuple[str, str]]:
    with pytest.raises(Misfit) as caught:
        read(kind, value)
    return [(".".join(map(str, loc)), what) for loc, what in caught.value.problems]


def test_what_is_left_out_has_its_default_and_a_section_is_built() -> None:
    shape = read(Shape, {"name": "a", "corners": [{"x": 1}, {"x": 2, "y": 3}], "centre": {"x": 0}})
    assert shape == Shape(name="a", corners=(Point(x=1.0), Point(x=2.0, y=3.0)), centre=Point(x=0.0))


def test_all_problems_are_found_together_each_with_its_path() -> None:
    value = {"size": 0, "corners": [{"x": 1}, {"y": "2", "z": 3}], "pair": [1], "tags": {"A": 1, "b": "c"}}
    assert problems(Shape, value) == [
        ("size", "wrong"),
        ("corners.1.y", "wrong"),
        ("corners.1.z", "unknown"),
        ("corners.1.x", "missing"),
        ("pair", "wrong"),
        ("tags.A", "wrong key"),
        ("tags.b", "wrong"),
        ("name", "missing"),
    ]


def test_the_message_has_the_paths() -> None:
    with pytest.raises(ValueError, match=r"^size: wrong; colour: unknown; name: missing$"):
        read(Shape, {"size": "large", "colour": "red"})


def test_a_message_stays_short_and_safe_for_a_terminal() -> None:
    with pytest.raises(Misfit, match=r"and 983 more$") as caught:
        read(Point, {"x": 1, "\x1b[31m": 2, **{str(number): 0 for number in range(1002)}})
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (int, 7, 7),
        (float, 7, 7.0),
        (float, -0.5, -0.5),
        (bool, True, True),
        (str, "", ""),
        (int | None, None, None),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (Literal[1, "auto"], "auto", "auto"),
        (tuple[int, ...], [], ()),
        (tuple[float, str], [1, "a"], (1.0, "a")),
        (Annotated[float, Bounds(ge=0, lt=1)], 0, 0.0),
    ],
)
def test_a_right_value_is_taken(kind: Any, value: object, found: object) -> None:
    assert read(kind, value) == found
    assert type(read(kind, value)) is type(found)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, "1"),
        (int, None),
        (float, True),
        (float, math.nan),
        (float, math.inf),
        (float, 10**400),
        (bool, 1),
        (bool, "true"),
        (str, 1),
        (Literal[1], True),
        (Literal[1], 1.0),
        (Literal["a"], ["a"]),
        (tuple[int, ...], {"0": 1}),
        (tuple[int, ...], "12"),
        (tuple[int, int], [1, 2, 3]),
        (dict[str, int], [1]),
        (Point, [1, 2]),
        (Annotated[float, Bounds(ge=0, lt=1)], 1),
        (Annotated[int, Bounds(gt=0, le=3)], 4),
        (Annotated[str, Bounds(pattern="^a$")], "a\n"),
    ],
)
def test_a_wrong_value_is_one_problem(kind: Any, value: object) -> None:
    assert problems(kind, value) == [("", "wrong")]


points = st.builds(Point, x=st.floats(allow_nan=False, allow_infinity=False))
shapes = st.builds(
    Shape,
    name=st.text("abc", min_size=1),
    size=st.just("auto") | st.integers(1),
    corners=st.lists(points).map(tuple),
    filled=st.none() | st.booleans(),
    tags=st.dictionaries(st.text("xyz", min_size=1), st.integers()),
    more=st.dictionaries(st.text(), st.none() | st.booleans() | st.lists(st.integers())),
    centre=st.none() | points,
)


@given(shapes)
def test_what_was_written_is_read_again(shape: Shape) -> None:
    assert read(Shape, json.loads(json.dumps(plain(shape)))) == shape


@given(shapes, st.sampled_from([key.name for key in fields(Shape)]), st.sampled_from([b"", 1j, (), {1}]))
def test_a_value_of_a_foreign_kind_is_wrong_at_its_path(shape: Shape, key: str, value: object) -> None:
    assert problems(Shape, {**plain(shape), key: value}) == [(key, "wrong")]
