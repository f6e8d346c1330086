"""What a run writes down, under the names and units that predictions use."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from partrain.run.reading import known_keys
from partrain.spec.section import Bounds
from partrain.spec.values import read

Timestamp = Annotated[float, Bounds(ge=0, lt=253_370_764_800)]
"""Seconds since 1970; before the year 9999, the last one that every calendar of Python knows."""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, as measured; a line of metrics.jsonl."""

    step: int
    """1 for the first step."""
    loss: float
    """Mean over the global batch, in nats a token."""
    lr: float
    """Learning rate of this step."""
    grad_norm: float
    """Norm of the whole model's gradient before clipping."""
    step_s: float
    """Seconds from the end of the step before."""
    tokens: int
    """Tokens trained on so far."""
    tokens_per_s: float
    """Tokens a second over all devices."""
    flops: float
    """Model FLOP/s a device: the model's own work, recomputation not counted."""
    mfu: float | None
    """`flops` over the device's peak; None where the peak is not known."""
    peak_bytes: int
    """Largest memory of any rank so far: allocated on GPUs; on CPUs of its tensors where these are counted,
    else resident."""
    time: float
    """Seconds since 1970."""
    loss_scale: float | None = None
    """Factor of the loss with which the gradients were made; None where none are scaled."""
    skipped: bool = False
    """Whether the update was left out: weights and optimizer states are as before the step."""
    warning: str = ""
    """What the guard says of this step, in one line; empty: nothing."""
    most_bytes: tuple[int, ...] = ()
    """A number a stage: the memory of its fullest rank so far, in the steps where a stage's has grown; on
    CPUs only where tensors are counted."""
    least_bytes: tuple[int, ...] = ()
    """The same of its emptiest rank."""
    predicted_bytes: tuple[int, ...] = ()
    """What the plan says of its ranks."""

    def to_json(self) -> str:
        """A line of metrics.jsonl; null stands for NaN and infinity, which JSON does not have."""
        return _line(self)


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation, with the weights that `step` left; a line of metrics.jsonl, after the step's own."""

    step: int
    validation_loss: float
    """Mean cross-entropy over all tokens of the set, in nats; neither label smoothing nor z-loss is in it."""
    perplexity: float
    """e to the power of `validation_loss`; infinite where that is no number of 64 bits."""
    num_sequences: int
    evaluation_s: float
    """Seconds it took; no step's time contains them."""
    time: float
    """Seconds since 1970."""

    def to_json(self) -> str:
        """As a step's."""
        return _line(self)


Record = StepRecord | EvaluationRecord


def perplexity(loss: float) -> float:
    """Of a mean cross-entropy in nats.

    >>> perplexity(0.0), perplexity(1e4)
    (1.0, inf)
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _line(record: StepRecord | EvaluationRecord) -> str:
    return json.dumps({name: _finite(value) for name, value in asdict(record).items()}, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_shown(step: int, *, log_every: int, steps: int) -> bool:
    """Whether a step is among those that the console and TensorBoard show; metrics.jsonl has them all.

    >>> [step for step in range(1, 26) if is_shown(step, log_every=10, steps=25)]
    [1, 10, 20, 25]
    """
    return step % log_every == 0 or step in (1, steps)


@dataclass(frozen=True)
class Failure:
    """Why one rank ended."""

    rank: int
    time: Timestamp
    kind: str
    """`error`: its own exception; `guard`: the training went wrong, as all ranks say; `peer`: another rank
    went away; `signal`: killed; `exit`: no word left."""
    message: str
    """One line."""
    traceback: str = ""
    step: int | None = None
    """Step it was in; None: before the first."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: str
    """`done`, `failed` or `interrupted`."""
    exit_code: int
    message: str
    """One line for a person."""
    finished: Timestamp
    failure: Failure | None = None
    """The first rank that failed."""
    other_failures: tuple[Failure, ...] = ()
    """The other ranks' ends, in their order."""


def failure_from(value: object) -> Failure:
    """A `Failure` from its JSON object; keys of later versions are left aside.

    Raises Misfit, a ValueError, where a key is missing or a value is of another kind.
    """
    return read(Failure, known_keys(Failure, value))


def outcome_from(value: object) -> Outcome:
    """An `Outcome` from its JSON object; keys of later versions are left aside.

    Raises Misfit, a ValueError, where a key is missing or a value is of another kind.
    """
    found: Any = known_keys(Outcome, value)
    if isinstance(found, dict):
        others = found.get("other_failures", [])
        found["failure"] = known_keys(Failure, found.get("failure"))
        found["other_failures"] = (
            [known_keys(Failure, item) for item in others] if isinstance(others, list) else others
        )
    return read(Outcome, found)
