"""What a rank knows when it is refused memory."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from partrain.engine.peak_memory import PeakMemory
from partrain.errors import ShortageError
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan
from partrain.plan.shortage import Shortage, shortage_words

_REFUSED = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate (?P<number>[0-9.]+) ?(?P<unit>bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

MOMENTS = {
    "build_engine": "construction",
    "measure": "evaluation",
    "after": "checkpoint",
    "_exec_forward_pass": "forward",
    "_exec_backward_pass": "backward",
    "_exec_reduce_grads": "reduction",
    "_exec_reduce_tied_grads": "reduction",
    "_exec_optimizer_step": "step",
    "forward": "forward",
    "backward": "backward",
    "step": "step",
}
"""Function of partrain or DeepSpeed -> the estimate's moment in which it runs."""


@contextmanager
def told_shortage(plan: Plan, *, rank: int, memory: PeakMemory) -> Iterator[None]:
    """While what is raised for want of memory becomes a ShortageError that says which part has grown."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        stage = coordinate_of(rank, plan.layout).pp
        raise ShortageError(shortage_words(plan, stage, shortage_of(error, memory))) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device or the host refused memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _REFUSED.search(str(error)) is not None


def shortage_of(error: BaseException, memory: PeakMemory) -> Shortage:
    """What is known of an `error` that is one of memory."""
    asked = _ASKED.search(str(error))
    used = memory.used()
    return Shortage(
        moment=moment_in(error),
        asked_bytes=asked and int(float(asked["number"]) * _UNITS[asked["unit"].lower()]),
        allocated_bytes=used.allocated,
        held_bytes=memory.held_bytes,
        reserved_bytes=used.reserved,
        outside_bytes=used.outside,
    )


def moment_in(error: BaseException) -> str:
    """The moment whose function is outermost in the traceback: what recomputes, or sends, is part of it."""
    called = (frame.name for frame in traceback.extract_tb(error.__traceback__))
    return next((MOMENTS[name] for name in called if name in MOMENTS), "")
