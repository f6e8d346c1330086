"""The learning rate's course: a pure function of the step."""

from __future__ import annotations

from math import cos, pi, sqrt

from partrain.spec.optimizers import OptimizerSpec
from partrain.spec.training import ScheduleSection


def learning_rate(step: int, *, steps: int, optimizer: OptimizerSpec, schedule: ScheduleSection) -> float:
    """Learning rate of `step`, the first being 1, of `steps`.

    Rises in a line to `optimizer.lr` at step `warmup_steps`. Then it stays; or falls to `min_lr` at the last
    step by half a cosine (Loshchilov and Hutter 2017, equation 5), in a line, or in a line that begins at the
    last `decay_ratio` of the steps (Hu et al. 2024, MiniCPM, section 4.2; the line as in Hägele et al. 2024);
    or falls as 1 / sqrt(step) (Vaswani et al. 2017, equation 3), no lower than `min_lr`.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"step {step} is outside 1 to {steps}")
    peak, low, warmup = optimizer.lr, schedule.min_lr, schedule.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if schedule.name == "constant":
        return peak
    if schedule.name == "inverse_sqrt":
        return max(low, peak * sqrt(max(warmup, 1) / step))
    done = (step - warmup) / (steps - warmup)
    return low + (peak - low) * _left(done, schedule)


def _left(done: float, schedule: ScheduleSection) -> float:
    """Part of the way from the least to the peak that is left when `done` of the steps are."""
    if schedule.name == "cosine":
        return 0.5 * (1.0 + cos(pi * done))
    return min(1.0, (1.0 - done) / (schedule.decay_ratio if schedule.name == "wsd" else 1.0))
