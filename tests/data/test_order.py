"""The laws of the global order: a permutation an epoch, the same under every layout."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.data.order import positions, sample_index
from partrain.layout.layout import Layout
from partrain.spec.facts import num_windows


def layout(*, dp: int = 1, micro_batch_size: int = 1, num_micro_batches: int = 1) -> Layout:
    return Layout(dp, 1, 1, 1, False, micro_batch_size, num_micro_batches, "none", (0, 3))


def epoch_order(num_samples: int, *, epoch: int = 0, seed: int = 1) -> list[int]:
    first = epoch * num_samples
    return [sample_index(first + i, num_samples=num_samples, seed=seed) for i in range(num_samples)]


@pytest.mark.parametrize("num_samples", [*range(1, 70), 127, 128, 129, 1000, 4095, 4097, 10007])
def test_an_epoch_visits_every_sample_once(num_samples: int) -> None:
    assert sorted(epoch_order(num_samples, epoch=num_samples % 3)) == list(range(num_samples))


@given(num_samples=st.integers(1, 2**40), seed=st.integers(0, 2**70), data=st.data())
def test_positions_of_one_epoch_never_share_a_sample(
    num_samples: int, seed: int, data: st.DataObject
) -> None:
    epoch = data.draw(st.integers(0, 1000))
    places = data.draw(st.sets(st.integers(0, num_samples - 1), max_size=50))
    found = {sample_index(epoch * num_samples + p, num_samples=num_samples, seed=seed) for p in places}
    assert len(found) == len(places)
    assert all(0 <= index < num_samples for index in found)


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    # a changed number here means that runs of earlier versions can no longer be resumed
    assert epoch_order(10) == [2, 7, 8, 4, 5, 3, 0, 9, 6, 1]
    assert sample_index(123_456_789_012, num_samples=2**40, seed=7) == 738071176175


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_order(50, epoch=epoch, seed=seed)) for epoch in range(20) for seed in range(20)}
    assert len(orders) == 400


def test_every_sample_is_as_likely_at_every_place() -> None:
    # 13 samples at 13 places over 2000 seeds: chi-square with 12 x 12 = 144 degrees of freedom has
    # mean 144 and standard deviation sqrt(288) = 17; five of those are allowed
    size, num_seeds = 13, 2000
    counts = [[0] * size for _ in range(size)]
    for seed in range(num_seeds):
        for place, index in enumerate(epoch_order(size, seed=seed)):
            counts[place][index] += 1
    expected = num_seeds / size
    chi_square = sum((count - expected) ** 2 / expected for row in counts for count in row)
    assert abs(chi_square - 144) < 5 * math.sqrt(288)


def test_neighbours_are_scattered_over_the_whole_dataset() -> None:
    # two independent uniform draws from [0, n) are n / 3 apart on average, with a standard deviation of
    # n / sqrt(18); over 10,000 pairs the mean is within 5 x 0.236 n / 100 = 0.012 n
    size = 2**30 + 12345
    order = [sample_index(p, num_samples=size, seed=3) for p in range(20_000)]
    distance = sum(abs(a - b) for a, b in zip(order[::2], order[1::2], strict=True)) / 10_000 / size
    assert abs(distance - 1 / 3) < 0.012


@given(
    step=st.integers(1, 10**9),
    dp=st.integers(1, 8),
    micro_batch_size=st.integers(1, 8),
    num_micro_batches=st.integers(1, 8),
)
def test_the_global_batch_is_the_same_under_every_layout(
    step: int, dp: int, micro_batch_size: int, num_micro_batches: int
) -> None:
    spread = layout(dp=dp, micro_batch_size=micro_batch_size, num_micro_batches=num_micro_batches)
    joined = [
        position
        for replica in range(dp)
        for micro_batch in range(num_micro_batches)
        for position in positions(step, spread, replica=replica, micro_batch=micro_batch)
    ]
    alone = layout(micro_batch_size=spread.global_batch_size)
    assert joined == list(positions(step, alone, replica=0, micro_batch=0))


def test_steps_follow_each_other_without_gap() -> None:
    alone = layout(micro_batch_size=6)
    assert [positions(step, alone, replica=0, micro_batch=0) for step in (1, 2, 3)] == [
        range(0, 6),
        range(6, 12),
        range(12, 18),
    ]


@pytest.mark.parametrize(("step", "replica", "micro_batch"), [(0, 0, 0), (1, 2, 0), (1, 0, 3), (1, -1, 0)])
def test_a_place_outside_the_layout_is_a_bug(step: int, replica: int, micro_batch: int) -> None:
    with pytest.raises(ValueError, match="is not in"):
        positions(step, layout(dp=2, num_micro_batches=3), replica=replica, micro_batch=micro_batch)


def test_windows_share_one_token() -> None:
    # T = 4: windows 0..4, 4..8 need 9 tokens; the tenth to twelfth do not make a third
    assert [num_windows(n, sequence_length=4) for n in (0, 1, 4, 5, 8, 9, 12, 13)] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_an_index_takes_microseconds() -> None:
    best = min(_seconds_for(1000) for _ in range(5))
    assert best / 1000 < 20e-6


def _seconds_for(num_samples: int) -> float:
    started = time.perf_counter()
    for position in range(num_samples):
        sample_index(position, num_samples=2**40 - 87, seed=1)
    return time.perf_counter() - started


def test_steps_of_other_sizes_go_on_where_the_last_one_ended() -> None:
    # two steps of 4 and one of 12 under two layouts: positions 0 to 19, each once and in order
    for dp, micro in ((1, 4), (2, 1)):
        found = [
            position
            for step, first, size in ((1, 0, 4), (2, 0, 4), (1, 8, 12))
            for replica in range(dp)
            for number in range(size // dp // micro)
            for position in positions(
                step,
                layout(dp=dp, micro_batch_size=micro, num_micro_batches=size // dp // micro),
                replica=replica,
                micro_batch=number,
                first=first,
            )
        ]
        assert found == list(range(20))
