"""Our axis order is DeepSpeed's."""

from itertools import product
from typing import Any

import pytest

from partrain.layout.layout import Layout
from partrain.layout.ranks import Axis, coordinate_of, groups_along

pytestmark = pytest.mark.torch

DEGREES = tuple(product((1, 2, 3), repeat=3))
OURS_AND_THEIRS: tuple[tuple[Axis, str], ...] = (("pp", "pipe"), ("dp", "data"), ("tp", "model"))


def ours(dp: int, pp: int, tp: int) -> Layout:
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


def theirs(dp: int, pp: int, tp: int) -> Any:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    return PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)


@pytest.mark.parametrize(("dp", "pp", "tp"), DEGREES)
def test_ranks_sit_where_deepspeeds_topology_puts_them(dp: int, pp: int, tp: int) -> None:
    layout, topology = ours(dp, pp, tp), theirs(dp, pp, tp)
    assert topology.world_size() == layout.world_size
    for rank in range(layout.world_size):
        at, found = topology.get_coord(rank), coordinate_of(rank, layout)
        assert (found.pp, found.dp, found.tp) == (at.pipe, at.data, at.model)


@pytest.mark.parametrize(("dp", "pp", "tp"), DEGREES)
def test_groups_are_deepspeeds(dp: int, pp: int, tp: int) -> None:
    layout, topology = ours(dp, pp, tp), theirs(dp, pp, tp)
    for axis, name in OURS_AND_THEIRS:
        groups = {tuple(group) for group in topology.get_axis_comm_lists(name)}
        assert groups == set(groups_along(axis, layout))
