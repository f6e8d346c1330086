"""What a run writes down, under the names and units that predictions use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


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
    """Largest memory of any rank: allocated on GPUs, resident on CPUs."""
    time: float
    """Seconds since 1970."""

    def to_json(self) -> str:
        """A line of metrics.jsonl; null stands for NaN and infinity, which JSON does not have."""
        return json.dumps({name: _finite(value) for name, value in asdict(self).items()}, allow_nan=False)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


@dataclass(frozen=True)
class Failure:
    """Why one rank ended."""

    rank: int
    time: float
    """Seconds since 1970."""
    kind: str
    """`error`: its own exception; `peer`: another rank went away; `signal`: killed; `exit`: no word left."""
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
    finished: float
    """Seconds since 1970."""
    failure: Failure | None = None
    """The first rank that failed."""
    other_failures: tuple[Failure, ...] = ()
    """The other ranks' ends, in their order."""


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: item for name, item in value.items() if name in names}


def failure_from(value: Mapping[str, Any]) -> Failure:
    """A `Failure` from its JSON object; keys of later versions are left aside."""
    return Failure(**_known(Failure, value))


def outcome_from(value: Mapping[str, Any]) -> Outcome:
    """An `Outcome` from its JSON object; keys of later versions are left aside."""
    found = _known(Outcome, value)
    if found.get("failure") is not None:
        found["failure"] = failure_from(found["failure"])
    found["other_failures"] = tuple(failure_from(item) for item in found.get("other_failures", ()))
    return Outcome(**found)
