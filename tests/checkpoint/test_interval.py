"""How often to save when the job leaves it open."""

from __future__ import annotations

import pytest

from partrain.checkpoint.interval import FIRST_S, LONGEST_S, SHORTEST_S, best_interval_s


def test_the_time_lost_is_least_at_the_interval_chosen() -> None:
    """Lost a second: the cost of a save an interval, and half an interval a failure."""
    cost, run_s, failures = 5.0, 50_000.0, 9
    chosen = best_interval_s(cost, num_devices=10**9, run_s=run_s, num_failures=failures)

    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / (run_s / (1 + failures))

    assert all(lost(chosen) < lost(chosen * other) for other in (0.5, 0.9, 1.1, 2.0))
    assert chosen == pytest.approx((2 * 5.0 * 5_000.0) ** 0.5, rel=0.01)


def test_failures_make_saves_more_frequent_and_cost_less() -> None:
    few, many = (best_interval_s(2.0, num_devices=4096, run_s=86_400.0, num_failures=n) for n in (0, 20))
    assert few > many
    assert best_interval_s(4.0, num_devices=4096, run_s=86_400.0, num_failures=20) > many


def test_it_stays_in_bounds() -> None:
    assert best_interval_s(0.0, num_devices=8, run_s=0.0, num_failures=0) == FIRST_S
    assert best_interval_s(1e-6, num_devices=10**6, run_s=0.0, num_failures=0) == SHORTEST_S
    assert best_interval_s(1e3, num_devices=1, run_s=0.0, num_failures=0) == LONGEST_S
