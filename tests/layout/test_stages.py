from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.layout.stages import balanced_bounds
from partrain.model.shape import layer_flops
from partrain.spec.catalog import model_names
from partrain.spec.model import ModelSection
from partrain.spec.resolve import resolve_model


@st.composite
def splits(draw: st.DrawFn, *, most: int, costs: st.SearchStrategy[float]) -> tuple[list[float], int, int]:
    """Costs, a number of stages and a least first stage that go together."""
    items = draw(st.lists(costs, min_size=1, max_size=most))
    min_first = draw(st.integers(1, min(3, len(items))))
    return items, draw(st.integers(1, len(items) - min_first + 1)), min_first


def best_by_trying_all(costs: list[float], num_stages: int, min_first: int) -> tuple[int, ...]:
    """The definition, spelled out: largest stage, then squares, then earlier stages larger."""
    inner = combinations(range(1, len(costs)), num_stages - 1)
    every = [(0, *cut, len(costs)) for cut in inner]

    def badness(bounds: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        stages = [sum(costs[first:end]) for first, end in pairwise(bounds)]
        return max(stages), sum(cost**2 for cost in stages), tuple(-bound for bound in bounds)

    return min((bounds for bounds in every if bounds[1] >= min_first), key=badness)


@given(splits(most=60, costs=st.floats(0, 1e18)))
def test_stages_are_contiguous_not_empty_and_hold_every_item_once(
    split: tuple[list[float], int, int],
) -> None:
    costs, num_stages, min_first = split
    bounds = balanced_bounds(costs, num_stages, min_first=min_first)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(costs), num_stages + 1)
    assert all(first < end for first, end in pairwise(bounds))
    assert bounds[1] >= min_first


@given(splits(most=9, costs=st.integers(0, 7)))
def test_no_split_is_better(split: tuple[list[float], int, int]) -> None:
    costs, num_stages, min_first = split
    assert balanced_bounds(costs, num_stages, min_first=min_first) == best_by_trying_all(*split)


def test_equal_items_leave_the_larger_stages_first() -> None:
    sizes = [end - first for first, end in pairwise(balanced_bounds([1.0] * 38, 8))]
    assert sizes == [5, 5, 5, 5, 5, 5, 4, 4]


def test_a_fraction_that_no_float_holds_is_still_equal_to_itself() -> None:
    # 0.1 + 0.1 + 0.1 is not 0.3 in floats; equal items must come out as equal.
    sizes = [end - first for first, end in pairwise(balanced_bounds([0.1] * 10, 4))]
    assert sizes == [3, 3, 2, 2]


def test_a_heavy_last_item_stands_alone() -> None:
    # 8 items of 1 and one of 4 on three stages: 4, 4, 4.
    assert balanced_bounds([1.0] * 8 + [4.0], 3) == (0, 4, 8, 9)


def test_the_embedding_is_never_alone() -> None:
    # Of these six layers on four stages the embedding, which costs nothing, takes a block with it.
    assert balanced_bounds([0.0, 1.0, 1.0, 1.0, 1.0, 1.0], 4, min_first=2) == (0, 3, 4, 5, 6)
    assert balanced_bounds([0.0, 9.0, 1.0, 1.0], 3, min_first=2) == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("num_items", "num_stages", "min_first"), [(3, 4, 1), (3, 3, 2), (0, 1, 1), (3, 0, 1)]
)
def test_more_stages_than_items_is_a_misuse(num_items: int, num_stages: int, min_first: int) -> None:
    with pytest.raises(ValueError, match="do not make"):
        balanced_bounds([1.0] * num_items, num_stages, min_first=min_first)


@pytest.mark.parametrize("name", model_names())
def test_every_legal_depth_of_a_catalogue_model_has_stages_with_a_block_or_the_head(name: str) -> None:
    model = resolve_model(ModelSection(preset=name), sequence_length=1024, vocab_size=None).model
    assert model is not None
    for num_stages in {1, 2, 3, model.num_layers, model.num_layers + 1}:
        bounds = balanced_bounds(layer_flops(model, 1024), num_stages, min_first=2)
        assert bounds[1] >= 2
        assert all(first < end for first, end in pairwise(bounds))
