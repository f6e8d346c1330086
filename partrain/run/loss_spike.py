"""When a loss is a spike: far above the losses before it, by their own spread."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

WINDOW = 64
"""Losses that say what is usual: enough for their spread, few enough that the curve is flat over them."""
LEAST = WINDOW // 2
"""Losses before there is a usual. OLMo-core's SkipStepOptimizer waits for half of its window too."""
DEVIATIONS = 6.0
"""Standard deviations above the middle; the same there (`sigma_factor`). Of a normal spread one loss in a
thousand million is so high."""
NORMAL = 1.4826
"""Standard deviations in a median absolute deviation of a normal spread (Rousseeuw and Croux 1993).
Medians, where OLMo-core has mean and deviation: a spike in the window would hide the next one."""
LEAST_RISE = 1.1
"""Times the middle at least: 0.2 nats at a loss of 2. Losses that hardly differ have no spread to go by."""


@dataclass(frozen=True)
class LossHistory:
    """What is remembered of the losses so far."""

    recent: tuple[float, ...] = ()
    """The last WINDOW of them, the newest last."""
    is_high: bool = False
    """Whether the last one was above what was usual: a spike is told at its first step only."""


@dataclass(frozen=True)
class Spike:
    """A loss that is not usual."""

    loss: float
    usual: float
    """The middle of the losses before."""
    limit: float
    """What would still have been usual."""
    num_before: int
    """Losses before that were looked at."""

    def __str__(self) -> str:
        return (
            f"the loss jumped to {self.loss:.4g}; the {self.num_before} steps before had {self.usual:.4g}"
            f" in the middle, and up to {self.limit:.4g} was usual"
        )


def watch(history: LossHistory, loss: float) -> tuple[LossHistory, Spike | None]:
    """The history with one more loss, which is finite; and the spike that it begins, if it does.

    A curve that falls is above its own end in the middle, so that it can only hide a spike and never make
    one; a loss that stays at a higher level is told once and becomes usual.
    """
    before = history.recent
    recent = (*before, loss)[-WINDOW:]
    if len(before) < LEAST:
        return LossHistory(recent), None
    usual = median(before)
    spread = NORMAL * median(abs(other - usual) for other in before)
    limit = max(usual + DEVIATIONS * spread, LEAST_RISE * usual)
    is_high = loss > limit
    begins = is_high and not history.is_high
    return LossHistory(recent, is_high), Spike(loss, usual, limit, len(before)) if begins else None
