"""The global batch's course: a pure function of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from partrain.layout.layout import Layout
from partrain.plan.plan import TrainingPlan
from partrain.spec.training import BatchRampSection


@dataclass(frozen=True)
class Phase:
    """Steps of one batch size."""

    first_step: int
    """1 for the first step of a training."""
    first_sequence: int
    """Sequences trained on before."""
    batch: int
    """Sequences a step."""

    def sequences_after(self, step: int) -> int:
        """Sequences trained on when `step`, one of the phase's, has ended."""
        return self.first_sequence + (step - self.first_step + 1) * self.batch


@lru_cache(maxsize=8)
def phases(ramp: BatchRampSection | None, batch: int) -> tuple[Phase, ...]:
    """The phases of a training whose full global batch is `batch`, the last of them without end.

    After c sequences a step has start + increment x floor(c x n / samples) of them, n being the number of
    increments, as in Megatron-LM's `--rampup-batch-size`.

    >>> [(p.first_step, p.batch) for p in phases(BatchRampSection(start=4, increment=4, samples=40), 24)]
    [(1, 4), (3, 8), (4, 12), (5, 16), (6, 24)]
    """
    return tuple(_phases(ramp, batch))


def _phases(ramp: BatchRampSection | None, batch: int) -> Iterator[Phase]:
    step, done = 1, 0
    number = 0 if ramp is None else (batch - ramp.start) // ramp.increment
    for rise in range(number):
        assert ramp is not None
        size = ramp.start + rise * ramp.increment
        # steps until done x number reaches (rise + 1) x samples
        steps = -(-((rise + 1) * ramp.samples - done * number) // (size * number))
        if steps > 0:
            yield Phase(step, done, size)
            step, done = step + steps, done + steps * size
    yield Phase(step, done, batch)


def phase_at(step: int, training: TrainingPlan, layout: Layout) -> Phase:
    """The phase that `step` belongs to."""
    found = phases(training.batch_ramp, layout.global_batch_size)
    return next(phase for phase in reversed(found) if phase.first_step <= step)


def layout_in(phase: Phase, layout: Layout) -> Layout:
    """`layout` with the micro-batches of a step of `phase`."""
    unit = layout.dp * layout.micro_batch_size
    return replace(layout, num_micro_batches=phase.batch // unit)


def steps_for(sequences: int, ramp: BatchRampSection | None, batch: int) -> int:
    """Steps until at least so many sequences are trained on.

    >>> steps_for(45, BatchRampSection(start=4, increment=4, samples=40), 24)
    6
    """
    last = [phase for phase in phases(ramp, batch) if phase.first_sequence < max(1, sequences)][-1]
    return last.first_step - 1 + -(-(sequences - last.first_sequence) // last.batch)


def sequences_before(step: int, training: TrainingPlan, layout: Layout) -> int:
    """Sequences trained on before `step`; the step begins at this position of the data's order."""
    phase = phase_at(step, training, layout)
    return phase.sequences_after(step) - phase.batch
