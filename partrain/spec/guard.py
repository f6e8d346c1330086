"""What is done about a training that goes wrong by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.section import Count


@dataclass(frozen=True, kw_only=True)
class GuardSection:
    """The `guard` section."""

    nan: Literal["stop", "skip"] = "stop"
    """At a step whose loss or gradient is not finite on any rank: end the run, or leave out the update and
    go on. The weights are as before the step either way."""
    max_skipped_steps: Count = 5
    """Updates in a row that may be left out; one more ends the run. One bad batch is outlived, weights that
    are spoilt are not trained on for long."""
    loss_spike: Literal["warn", "stop", "none"] = "warn"
    """At a loss far above those of the steps before: say so, end the run, or nothing. A warning by default,
    since most runs come down again by themselves."""
