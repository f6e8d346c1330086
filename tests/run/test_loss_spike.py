"""What a spike of the loss is: by hand, by law, and on a curve that was measured."""

from __future__ import annotations

import json
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from partrain.run.loss_spike import LEAST, WINDOW, LossHistory, Spike, watch


def spikes(losses: list[float]) -> dict[int, Spike]:
    """Index -> spike that begins there."""
    history, found = LossHistory(), {}
    for index, loss in enumerate(losses):
        history, spike = watch(history, loss)
        if spike:
            found[index] = spike
    return found


def noisy(start: float, end: float, length: int, noise: float, seed: int) -> list[float]:
    """A power law from `start` towards `end`, as losses fall, with normal noise."""
    chance = random.Random(seed)
    return [end + (start - end) * (1 + i) ** -0.5 + chance.gauss(0, noise) for i in range(length)]


def test_the_limit_by_hand() -> None:
    """Sixteen each of 1.8, 1.9, 2.1 and 2.2: middle 2.0; deviations 0.1 and 0.2 in halves: middle 0.15;
    2.0 + 6 x 1.4826 x 0.15 = 3.33434."""
    before = [1.8, 1.9, 2.1, 2.2] * 16
    assert spikes([*before, 3.33]) == {}
    found = spikes([*before, 3.34])[64]
    assert (found.usual, round(found.limit, 5), found.num_before) == (2.0, 3.33434, 64)


def test_losses_that_hardly_differ_must_rise_by_a_tenth() -> None:
    assert spikes([2.0] * 40 + [2.19]) == {}
    assert list(spikes([2.0] * 40 + [2.21])) == [40]


def test_nothing_is_a_spike_before_there_is_a_usual() -> None:
    assert spikes([2.0] * (LEAST - 1) + [50.0]) == {}
    assert list(spikes([2.0] * LEAST + [50.0])) == [LEAST]


def test_a_spike_of_several_steps_is_told_once_and_the_next_one_again() -> None:
    assert list(spikes([2.0] * 40 + [4.0] * 5 + [2.0] * 5 + [4.0] * 3)) == [40, 50]


def test_a_level_that_stays_is_told_once_and_becomes_usual() -> None:
    assert list(spikes([2.0] * 70 + [4.0] * 100 + [8.0])) == [70, 170]


def test_noisy_falling_curves_have_no_spike_and_a_jump_in_them_is_one_in_its_step() -> None:
    for seed in range(30):
        losses = noisy(10.8, 2.0, 3000, 0.04, seed)
        assert spikes(losses) == {}
        for at in (300, 1000, 2500):
            assert list(spikes([*losses[:at], losses[at] * 1.5, *losses[at + 1 :]])) == [at]


def test_the_demo_s_losses_have_no_spike_until_one_is_put_in() -> None:
    """Of the 200 steps of jobs/demo.yaml."""
    losses = json.loads((Path(__file__).parent / "demo-losses.json").read_text())
    assert len(losses) == 200
    assert spikes(losses) == {}
    assert list(spikes([*losses[:-1], losses[0]])) == [len(losses) - 1]


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=150))
def test_no_falling_curve_has_a_spike(losses: list[float]) -> None:
    assert spikes(sorted(losses, reverse=True)) == {}


@given(st.lists(st.floats(0.01, 20), min_size=LEAST + 1, max_size=90), st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_the_unit_of_the_loss_plays_no_part(losses: list[float], factor: float) -> None:
    assert list(spikes([loss * factor for loss in losses])) == list(spikes(losses))


@given(st.lists(st.floats(0.01, 20), min_size=WINDOW + 1, max_size=WINDOW + 9))
def test_what_is_remembered_does_not_grow(losses: list[float]) -> None:
    history = LossHistory()
    for loss in losses:
        history, _ = watch(history, loss)
    assert history.recent == tuple(losses[-WINDOW:])
