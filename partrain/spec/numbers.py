"""Legal neighbours of a number, for messages."""

from __future__ import annotations

from collections.abc import Iterable


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, smallest first.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def neighbours(legal: Iterable[int], value: int) -> tuple[int, ...]:
    """The closest legal number on each side of `value`, where there is one.

    >>> neighbours((1, 2, 4, 8), 6), neighbours((1, 2), 6)
    ((4, 8), (2,))
    """
    below = [number for number in legal if number <= value]
    above = [number for number in legal if number > value]
    return (*below[-1:], *above[:1])


def listed(numbers: Iterable[object], last: str = ", ") -> str:
    """Numbers or names as words, `last` before the last of them.

    >>> listed((1, 2, 4)), listed((4, 8), last=" or ")
    ('1, 2, 4', '4 or 8')
    """
    *first, end = map(str, numbers)
    return f"{', '.join(first)}{last}{end}" if first else end
