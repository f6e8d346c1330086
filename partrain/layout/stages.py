"""Contiguous split of the layers over pipeline stages, balanced by the costs it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import lcm


def balanced_bounds(costs: Sequence[float], num_stages: int, *, min_first: int = 1) -> tuple[int, ...]:
    """Bounds of the best split: stage s holds the items bounds[s] to bounds[s + 1] - 1.

    Best is, in this order: the smallest largest stage, the smallest sum of squares, the most items on
    earlier stages. The first stage holds at least `min_first` items, every other at least one. Exact:
    costs are compared as fractions.

    >>> balanced_bounds([1.0] * 38, 8)
    (0, 5, 10, 15, 20, 25, 30, 34, 38)
    """
    if num_stages < 1 or min_first < 1 or len(costs) < min_first + num_stages - 1:
        raise ValueError(f"{len(costs)} items do not make {num_stages} stages, the first of {min_first}")
    sums = _prefix_sums(costs)
    largest = _smallest_bound(sums, num_stages, min_first)
    return _most_even(sums, num_stages, min_first, largest)


def _prefix_sums(costs: Sequence[float]) -> list[int]:
    """Sums of the first 0, 1, ... costs, all scaled by the same factor to whole numbers."""
    exact = [Fraction(cost) for cost in costs]
    scale = lcm(*(cost.denominator for cost in exact))
    return [0, *accumulate(int(cost * scale) for cost in exact)]


def _smallest_bound(sums: Sequence[int], num_stages: int, min_first: int) -> int:
    """The smallest cost of the largest stage, by bisection over what a greedy split can keep to."""
    low, high = -1, sums[-1]
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(sums, num_stages, min_first, middle):
            high = middle
        else:
            low = middle
    return high


def _fits(sums: Sequence[int], num_stages: int, min_first: int, largest: int) -> bool:
    """Whether no stage need cost more than `largest`.

    A greedy split that comes out with fewer stages can be cut further at no cost.
    """
    if sums[min_first] > largest:
        return False
    stages, start = 1, 0
    for end in range(min_first + 1, len(sums)):
        if sums[end] - sums[start] > largest:
            stages, start = stages + 1, end - 1
            if sums[end] - sums[start] > largest:
                return False
    return stages <= num_stages


def _most_even(sums: Sequence[int], num_stages: int, min_first: int, largest: int) -> tuple[int, ...]:
    """Bounds with the smallest sum of squares among those that keep to `largest`.

    Dynamic programming from the last stage back: for each item that a stage may start at, the least sum
    of squares of it and the later stages, and where it then ends.
    """
    num_items = len(sums) - 1
    least: dict[int, int] = {num_items: 0}
    ends: list[dict[int, int]] = []
    for stage in reversed(range(num_stages)):
        shortest = 1 if stage else min_first
        starts = range(min_first + stage - 1, num_items) if stage else range(1)
        options = {start: _best_end(sums, start, shortest, largest, least) for start in starts}
        found = {start: option for start, option in options.items() if option is not None}
        least = {start: squares for start, (squares, _) in found.items()}
        ends.append({start: end for start, (_, end) in found.items()})
    bounds = [0]
    for end_of in reversed(ends):
        bounds.append(end_of[bounds[-1]])
    return tuple(bounds)


def _best_end(
    sums: Sequence[int], start: int, shortest: int, largest: int, least: Mapping[int, int]
) -> tuple[int, int] | None:
    """Least sum of squares with a stage from `start`, and its end; None: no end is possible.

    On equal terms the later end wins, so that earlier stages hold more.
    """
    best: tuple[int, int] | None = None
    for end in range(start + shortest, len(sums)):
        cost = sums[end] - sums[start]
        if cost > largest:
            break
        if end in least and (best is None or cost**2 + least[end] <= best[0]):
            best = (cost**2 + least[end], end)
    return best
