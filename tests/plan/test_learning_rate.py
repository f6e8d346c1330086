from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.plan.learning_rate import learning_rate
from partrain.spec.optimizers import OptimizerSection, resolve_optimizer
from partrain.spec.training import ScheduleSection
from partrain.spec.values import read


def rates(
    name: str, *, steps: int, warmup: int = 0, low: float = 0.0, peak: float = 1.0, **more: float
) -> list[float]:
    schedule = read(ScheduleSection, {"name": name, "warmup_steps": warmup, "min_lr": low, **more})
    optimizer = resolve_optimizer(OptimizerSection(lr=peak))
    return [
        learning_rate(step, steps=steps, optimizer=optimizer, schedule=schedule)
        for step in range(1, steps + 1)
    ]


def test_the_warm_up_is_a_line_that_reaches_the_peak_at_its_last_step() -> None:
    assert rates("constant", steps=6, warmup=4, peak=2.0) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_falls_from_the_peak_to_the_least_at_the_last_step() -> None:
    # From 1 after 2 steps of warm-up to 0.2 in 4 steps: 0.2 a step.
    assert rates("linear", steps=6, warmup=2, low=0.2) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_a_wave() -> None:
    # Quarter points of half a wave: (1 + cos 45 deg) / 2 = 0.8536, 0.5, 0.1464, 0.
    assert rates("cosine", steps=5, warmup=1) == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)


def test_cosine_by_its_formula_without_warm_up() -> None:
    found = rates("cosine", steps=100, low=1e-5, peak=3e-4)
    assert found[29] == pytest.approx(1e-5 + 2.9e-4 * (1 + cos(pi * 0.3)) / 2)
    assert found[-1] == pytest.approx(1e-5)


def test_constant_stays() -> None:
    assert rates("constant", steps=3, low=0.5) == [1.0, 1.0, 1.0]


def test_wsd_stays_and_falls_in_a_line_over_the_last_part_of_the_steps_after_the_warm_up() -> None:
    # 2 of warm-up; of the 8 after it the last half falls from 1 to 0.2: 0.2 a step.
    found = rates("wsd", steps=10, warmup=2, low=0.2, decay_ratio=0.5)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_wsd_decays_over_the_last_tenth_unless_told() -> None:
    assert rates("wsd", steps=20) == pytest.approx([1.0] * 18 + [0.5, 0.0])


def test_wsd_that_only_decays_is_linear() -> None:
    assert rates("wsd", steps=7, warmup=3, decay_ratio=1.0) == rates("linear", steps=7, warmup=3)


def test_inverse_sqrt_is_a_half_at_four_times_the_warm_up() -> None:
    # After 2 steps of warm-up: sqrt(2/3) = 0.8165, sqrt(2/4) = 0.7071, 0.6325, 0.5774, 0.5345, sqrt(2/8).
    found = rates("inverse_sqrt", steps=8, warmup=2)
    expected = [0.5, 1.0, 0.816497, 0.707107, 0.632456, 0.57735, 0.534522, 0.5]
    assert found == pytest.approx(expected, abs=1e-6)


def test_inverse_sqrt_without_warm_up_begins_at_the_peak_and_has_a_least() -> None:
    assert rates("inverse_sqrt", steps=9, low=0.4, peak=2.0)[::3] == pytest.approx(
        [2.0, 1.0, 0.755929], abs=1e-6
    )
    assert rates("inverse_sqrt", steps=100, low=0.4)[-1] == 0.4


def test_a_training_that_is_all_warm_up_ends_at_the_peak() -> None:
    assert rates("cosine", steps=2, warmup=2) == [0.5, 1.0]


@given(
    st.sampled_from(["cosine", "linear", "constant", "wsd", "inverse_sqrt"]),
    st.integers(1, 200),
    st.integers(0, 250),
)
def test_the_rate_rises_until_the_warm_ups_end_and_never_after(name: str, steps: int, warmup: int) -> None:
    found = rates(name, steps=steps, warmup=warmup, low=0.1)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert all(0 < rate <= 1 for rate in found)


@pytest.mark.parametrize("step", [0, 11])
def test_a_step_outside_the_training_is_a_misuse(step: int) -> None:
    with pytest.raises(ValueError, match="outside 1 to 10"):
        learning_rate(
            step, steps=10, optimizer=resolve_optimizer(OptimizerSection()), schedule=ScheduleSection()
        )
