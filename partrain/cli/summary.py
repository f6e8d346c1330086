"""What the steps of a run came to, in numbers that do not grow with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partrain.run.records import EvaluationRecord, StepRecord


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
    most_bytes: tuple[int, ...]
    """Of the fullest rank of each stage; empty where that cannot be compared with the prediction."""
    predicted_bytes: tuple[int, ...]
    """What was predicted of each stage's ranks."""
    num_skipped: int
    """How many had their update left out."""
    evaluation: EvaluationRecord | None = None
    """The last one that was told."""
    evaluations_s: float = 0.0
    """Seconds that all of them took."""


def summed(before: Summary | None, record: StepRecord) -> Summary:
    """`before` and one more step."""
    if before is None:
        return Summary(
            first=record,
            last=record,
            num_steps=1,
            total_s=record.step_s,
            tokens_after_first=0.0,
            peak_bytes=record.peak_bytes,
            most_bytes=record.most_bytes,
            predicted_bytes=record.predicted_bytes,
            num_skipped=int(record.skipped),
        )
    return replace(
        before,
        last=record,
        num_steps=before.num_steps + 1,
        total_s=before.total_s + record.step_s,
        tokens_after_first=before.tokens_after_first + record.tokens_per_s * record.step_s,
        peak_bytes=max(before.peak_bytes, record.peak_bytes),
        most_bytes=record.most_bytes or before.most_bytes,
        predicted_bytes=record.predicted_bytes or before.predicted_bytes,
        num_skipped=before.num_skipped + record.skipped,
    )


def evaluated(before: Summary | None, record: EvaluationRecord) -> Summary | None:
    """`before` and one more evaluation; one before any step that was told is left out."""
    if before is None:
        return None
    return replace(before, evaluation=record, evaluations_s=before.evaluations_s + record.evaluation_s)
