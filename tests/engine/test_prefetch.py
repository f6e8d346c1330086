"""Micro-batches read ahead: the same, in the same order, and nothing outlives the reader."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator

import pytest
import torch

from partrain.engine.prefetch import Batch, Reader

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def batch(step: int, micro_batch: int) -> Batch:
    return torch.tensor([step, micro_batch]), torch.empty(0)


def numbers(batches: Iterator[Batch]) -> list[tuple[int, int]]:
    return [(int(tokens[0]), int(tokens[1])) for tokens, _ in batches]


def num_threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_each_step_gets_its_own_however_they_are_taken(ahead: int) -> None:
    sizes = {1: 3, 2: 1, 3: 2}
    reader = Reader(lambda s: [batch(s, m) for m in range(sizes[s])], range(1, 4), ahead=ahead, device=CPU)
    assert numbers(reader.batches(1)) == [(1, 0), (1, 1), (1, 2)]
    taken = reader.batches(2)
    assert numbers(iter([next(taken)])) == [(2, 0)]  # as a pipeline does: never asks for the end
    assert numbers(reader.batches(2)) == [(2, 0)]  # run again
    assert numbers(reader.batches(3)) == [(3, 0), (3, 1)]
    assert numbers(reader.batches(1)) == [(1, 0), (1, 1), (1, 2)]


def test_no_more_is_read_than_asked_for() -> None:
    read = threading.Semaphore(0)
    made: list[int] = []

    def load(step: int) -> list[Batch]:
        made.append(step)
        read.release()
        return [batch(step, 0)]

    reader = Reader(load, range(1, 100), ahead=2, device=CPU)
    assert made == []
    assert num_threads() == 0
    next(reader.batches(1))
    # the first, two ahead of it, and one that tells whether the last of them ends its step
    assert all(read.acquire(timeout=10) for _ in range(3))
    assert len(made) <= 4
    del reader
    assert num_threads() == 0


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_fault_in_the_thread_is_raised_in_its_step_with_its_traceback(ahead: int) -> None:
    def load(step: int) -> list[Batch]:
        if step == 2:
            raise LookupError("token 9 is outside")
        return [batch(step, 0)]

    def taken() -> None:
        reader = Reader(load, range(1, 4), ahead=ahead, device=CPU)
        assert numbers(reader.batches(1)) == [(1, 0)]
        next(reader.batches(2))

    with pytest.raises(LookupError, match="token 9") as caught:
        taken()
    assert "in load" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert num_threads() == 0
