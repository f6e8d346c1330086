"""The learning rate's course: a pure function of the step."""

from __future__ import annotations

from math import cos, pi

from partrain.spec.training import OptimizerSection, ScheduleSection


def learning_rate(step: int, *, steps: int, optimizer: OptimizerSection, schedule: ScheduleSection) -> float:
    """Learning rate of `step`, the first being 1, of `steps`.

    Rises in a line to `optimizer.lr` at step `warmup_steps`, then falls to `min_lr` at the last step: by
    half a cosine (Loshchilov and Hutter 2017, equation 5), in a line, or not at all.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"step {step} is outside 1 to {steps}")
    peak, low, warmup = optimizer.lr, schedule.min_lr, schedule.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if schedule.name == "constant":
        return peak
    done = (step - warmup) / (steps - warmup)
    left = 1.0 - done if schedule.name == "linear" else 0.5 * (1.0 + cos(pi * done))
    return low + (peak - low) * left
