from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.layout.layout import Layout
from partrain.layout.ranks import Axis, Coordinate, coordinate_of, groups_along, rank_of

AXES: tuple[Axis, ...] = ("pp", "dp", "tp")
degrees = st.integers(1, 6)


def layout(dp: int, pp: int, tp: int) -> Layout:
    return Layout(
        dp=dp,
        pp=pp,
        tp=tp,
        zero=1,
        sequence_parallel=False,
        micro_batch_size=1,
        num_micro_batches=1,
        recompute="none",
        stage_bounds=tuple(range(pp + 1)),
    )


@given(degrees, degrees, degrees)
def test_a_ranks_coordinate_leads_back_to_it(dp: int, pp: int, tp: int) -> None:
    where = layout(dp, pp, tp)
    coordinates = [coordinate_of(rank, where) for rank in range(where.world_size)]
    assert [rank_of(at, where) for at in coordinates] == list(range(where.world_size))


@given(degrees, degrees, degrees)
def test_coordinates_count_up_with_tensor_the_fastest_and_pipe_the_slowest(dp: int, pp: int, tp: int) -> None:
    where = layout(dp, pp, tp)
    in_order = [Coordinate(*at) for at in product(range(pp), range(dp), range(tp))]
    assert [coordinate_of(rank, where) for rank in range(where.world_size)] == in_order


@given(degrees, degrees, degrees, st.sampled_from(AXES))
def test_groups_along_an_axis_partition_the_world(dp: int, pp: int, tp: int, axis: Axis) -> None:
    where = layout(dp, pp, tp)
    groups = groups_along(axis, where)
    assert sorted(rank for group in groups for rank in group) == list(range(where.world_size))
    assert {len(group) for group in groups} == {getattr(where, axis)}


@given(degrees, degrees, degrees, st.sampled_from(AXES))
def test_ranks_of_a_group_differ_on_its_axis_alone(dp: int, pp: int, tp: int, axis: Axis) -> None:
    where = layout(dp, pp, tp)
    for group in groups_along(axis, where):
        places = [coordinate_of(rank, where) for rank in group]
        assert [getattr(at, axis) for at in places] == list(range(getattr(where, axis)))
        assert all(len({getattr(at, other) for at in places}) == 1 for other in AXES if other != axis)


def test_groups_of_two_by_two_by_two_by_hand() -> None:
    where = layout(2, 2, 2)
    assert groups_along("tp", where) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups_along("dp", where) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups_along("pp", where) == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_world_is_a_misuse(rank: int) -> None:
    with pytest.raises(ValueError, match="outside a world of 8"):
        coordinate_of(rank, layout(2, 2, 2))
