"""What the steps of a run came to, in numbers that do not grow with it."""

from __future__ import annotations

from dataclasses import dataclass

from partrain.run.records import StepRecord


@dataclass(frozen=True)
class Summary:
    """The steps that were told; a step may be left out where steps end faster than they can be shown."""

    first: StepRecord
    last: StepRecord
    num_steps: int
    """How many were told."""
    total_s: float
    """Seconds that they took together."""
    tokens_after_first: float
    """Tokens of all of them but the first, which warms everything up."""
    peak_bytes: int
    """Largest memory of any rank."""
    num_skipped: int
    """How many had their update left out."""


def summed(before: Summary | None, record: StepRecord) -> Summary:
    """`before` and one more step."""
    if before is None:
        return Summary(record, record, 1, record.step_s, 0.0, record.peak_bytes, int(record.skipped))
    return Summary(
        first=before.first,
        last=record,
        num_steps=before.num_steps + 1,
        total_s=before.total_s + record.step_s,
        tokens_after_first=before.tokens_after_first + record.tokens_per_s * record.step_s,
        peak_bytes=max(before.peak_bytes, record.peak_bytes),
        num_skipped=before.num_skipped + record.skipped,
    )
