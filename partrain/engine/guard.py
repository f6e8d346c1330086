"""Watches every step: what is not finite is found, named and left out or ended, a spike of the loss told.

Loss and gradient norm are the same on every rank, so that all of them act alike in the same step and a usual
step costs nothing. The engine leaves out an update whose norm is not finite by itself, under every layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, NamedTuple

import torch.distributed as dist

from partrain.engine.findings import Finding, Search, first_of, in_words, search_weights, searched
from partrain.errors import GuardError
from partrain.plan.plan import Plan
from partrain.run.loss_spike import LossHistory, watch

log = logging.getLogger(__name__)

_SPOILT = "the weights were spoilt before this step: start again from before, or look at that rank's device"
_LOWER = "a lower training.optimizer.lr, or more training.schedule.warmup_steps"
_SCALE = "training.loss_scale: dynamic, which finds a scale that fp16 can hold"


class StepResult(NamedTuple):
    """What came of a step."""

    loss: float
    """Mean over the global batch, in nats a token."""
    grad_norm: float
    """Of the whole model's gradient, before clipping."""
    loss_scale: float | None = None
    """Factor of the loss with which the gradients were made; None where none are scaled."""
    skipped: bool = False
    """Whether the update was left out: weights and optimizer states are as before."""
    warning: str = ""
    """One line for the user; empty: nothing is wrong."""

    @property
    def is_finite(self) -> bool:
        return isfinite(self.loss) and isfinite(self.grad_norm)


class Guard:
    """What is remembered from step to step, alike on every rank."""

    def __init__(self, engine: Any, plan: Plan, rank: int) -> None:
        self._engine, self._plan, self._rank = engine, plan, rank
        self._losses = LossHistory()
        self._skipped: list[str] = []
        """What was said of each update in a row that was left out."""

    def watch(self, step: int, run: Callable[[], StepResult]) -> StepResult:
        """The step that `run` does, judged. Collective: `run` may be done twice.

        Raises GuardError, on every rank in the same step, where the plan's guard says so.
        """
        result = run()
        if result.skipped:  # fp16 finds its loss scale in this way
            return result
        if result.is_finite:
            self._skipped = []
        else:
            result = self._not_finite(step, result, run)
        if result.is_finite:
            result = self._spike(step, result)
        if result.warning:
            log.warning("%s", result.warning)
        return result

    def _not_finite(self, step: int, result: StepResult, run: Callable[[], StepResult]) -> StepResult:
        what = "gradient" if isfinite(result.loss) else "loss"
        found, again = self._diagnosed(run)
        where = in_words(found, self._plan) if found else "and every weight, activation and gradient is"
        if again is not None and again.is_finite:
            where = "but was when the step was run again: no fault of data or weights"
        scaled = "" if result.loss_scale is None else f" at loss scale {result.loss_scale:g}"
        said = f"step {step}: the {what} is not finite{scaled}, {where}"
        guard, hint = self._plan.guard, self._hint(found, loss=result.loss)
        # With a finite norm the update was made; without a second run the weights were found to be spoilt.
        was_made = isfinite(result.grad_norm) or again is None or isfinite(again.grad_norm)
        sound_step = None if was_made else step - 1
        if guard.nan == "stop" or isfinite(result.grad_norm):
            raise GuardError(said, hint=hint, sound_step=sound_step)
        if again is not None and again.is_finite:
            self._skipped = []
            return again._replace(warning=f"{said}; that second update was made")
        self._skipped.append(said)
        number, most = len(self._skipped), guard.max_skipped_steps
        if number > most:
            raise GuardError(
                f"{number} steps in a row had to be skipped, guard.max_skipped_steps={most} are allowed;"
                f" {self._skipped[0]}",
                hint=hint,
                sound_step=sound_step,
            )
        return result._replace(skipped=True, warning=f"{said}; its update is left out ({number} of {most})")

    def _hint(self, found: Finding | None, *, loss: float) -> str:
        if found is not None and found.kind == "weight":
            return _SPOILT
        given = self._plan.training.loss_scale != "dynamic"
        return _SCALE if given and isfinite(loss) else _LOWER

    def _diagnosed(self, run: Callable[[], StepResult]) -> tuple[Finding | None, StepResult | None]:
        """What was not finite first over all ranks, and what came of the step a second time.

        The weights are as before it and its data depend on nothing else, so the step run again goes wrong
        in the same place; it is left alone where weights are not finite already.
        """
        module = self._engine.module
        search = Search(self._plan, self._rank)
        search_weights(search, module)
        found = first_of(_of_all_ranks(search.found.values()))
        if found is not None:
            return found, None
        with searched(search, module):
            again = run()
        return first_of(_of_all_ranks(search.found.values())), again

    def _spike(self, step: int, result: StepResult) -> StepResult:
        wish = self._plan.guard.loss_spike
        if wish == "none":
            return result
        self._losses, spike = watch(self._losses, result.loss)
        if spike is None:
            return result
        said = f"step {step}: {spike}"
        if wish == "stop":
            raise GuardError(said, hint=_LOWER)
        return result._replace(warning="; ".join(filter(None, (result.warning, said))))


def _of_all_ranks(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of every rank. Collective over the world."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(findings))
    return [found for some in gathered for found in some]
