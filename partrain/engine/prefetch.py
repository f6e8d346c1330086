"""Micro-batches read ahead of their use, in a thread; their order stays a pure function of the step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
T = TypeVar("T")


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, and whether it is the last.

    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    waiting: list[T] = []
    for item in items:
        yield from ((before, False) for before in waiting)
        waiting = [item]
    yield from ((item, True) for item in waiting)


def ahead_of(items: Iterator[T], number: int, *, prepare: Callable[[], None]) -> Iterator[T]:
    """`items`, up to `number` of them made before they are asked for, in a thread that `prepare` opens.

    What making one raises is raised where that item would have come, with its traceback. The thread ends
    with the iterator; nothing is made before the first is asked for.
    """
    if not number:
        prepare()
        yield from items
        return
    with ThreadPoolExecutor(1, "prefetch", initializer=prepare) as thread:
        waiting = deque(thread.submit(list, islice(items, 1)) for _ in range(number))
        while found := waiting.popleft().result():
            waiting.append(thread.submit(list, islice(items, 1)))
            yield found[0]


class Reader:
    """The micro-batches of this rank, step after step; the thread ends with it.

    A stage in a pipeline's middle asks for none, and none is read.
    """

    def __init__(
        self, read: Callable[[int], Iterable[Batch]], steps: range, *, ahead: int, device: torch.device
    ) -> None:
        def prepare() -> None:
            # A thread begins at the first device, where pinning memory would make a context.
            if device.type == "cuda":
                torch.cuda.set_device(device)

        everything = (item for step in steps for item in with_last(read(step)))
        self._items = ahead_of(everything, ahead, prepare=prepare)
        self._read, self._next = read, steps.start

    def batches(self, step: int) -> Iterator[Batch]:
        """Those of `step`: the next one, all of those before taken, or one that is run again."""
        if step < self._next:
            return iter(self._read(step))
        self._next = step + 1
        return self._taken()

    def _taken(self) -> Iterator[Batch]:
        for batch, is_last in self._items:
            yield batch
            if is_last:
                return
