"""Why a rank ran out of memory: which part of it had grown past the estimate, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from partrain.cost.estimate import Moment, StageEstimate
from partrain.plan.memory import Verdict, plan_memory, verdict_of
from partrain.plan.plan import Plan
from partrain.units import format_bytes

LITTLE_LESS = 0.95
"""Of the budget, where it is not known how much too large it was."""

WHERE = {
    "": "outside the moments that are estimated",
    "construction": "while the engine was built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "reduction": "while gradients were reduced",
    "step": "in the optimizer's step",
    "evaluation": "in an evaluation",
    "checkpoint": "while a checkpoint was taken",
}
"""Moment -> in words."""

BETWEEN_STEPS = "checkpoint"
"""The moment at which a rank holds what stays from step to step and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What a rank knew when it was refused memory; None: it did not know."""

    moment: str
    """One of WHERE: a moment of the estimate, `first ` left out; empty: none of them."""
    asked_bytes: int | None
    allocated_bytes: int | None
    """Held by tensors."""
    held_bytes: int | None
    """What of it was there before the step began."""
    reserved_bytes: int | None = None
    """Held by the caching allocator, tensors among it."""
    outside_bytes: int | None = None
    """Used on the device beside that, by this process and all others."""


@dataclass(frozen=True)
class Part:
    """A part of the memory, as it was and as it was estimated."""

    name: str
    bytes: int
    predicted: int
    fix: str = ""
    """What to do about it; empty: a change of the job."""

    @property
    def excess(self) -> int:
        return self.bytes - self.predicted


def shortage_words(plan: Plan, stage: int, shortage: Shortage) -> str:
    """One line: the moment, what was held, what of it is more than was estimated, and what to change."""
    memory = plan_memory(plan)
    estimate = memory.stages[stage]
    moment = moment_of(estimate, shortage.moment)
    said = [f"out of memory {WHERE[shortage.moment]} on stage {stage}: {_held(shortage)}"]
    if shortage.moment:
        said.append(f"{format_bytes(moment.bytes)} were estimated for that moment")
    grown = [part for part in parts(estimate, moment, shortage) if part.excess > 0]
    most = max(grown, key=lambda part: part.excess, default=None)
    if most is not None:
        was = f"{format_bytes(most.bytes)} where {format_bytes(most.predicted)} were estimated"
        said.append(f"past the estimate: {most.name}, {was}")
    elif shortage.allocated_bytes is not None:
        said.append("nothing has grown past the estimate: less memory was free than the plan counts on")
    fix = most.fix if most is not None else ""
    fix = fix or _smaller_budget(verdict_of(plan, memory), moment, shortage, grown=most is not None)
    return "; ".join((*said, f"fix: {fix}"))


def moment_of(estimate: StageEstimate, name: str) -> Moment:
    """The moment of that name, of a first pass or a later one, whichever is larger; the worst if unknown."""
    found = [moment for moment in estimate.moments if moment.name.removeprefix("first ") == name]
    return max(found, key=lambda moment: moment.bytes, default=estimate.worst)


def parts(estimate: StageEstimate, moment: Moment, shortage: Shortage) -> Iterator[Part]:
    """What can be compared of a rank's memory."""
    stays = next(item for item in estimate.moments if item.name == BETWEEN_STEPS).by_name
    held = sum(size for name, size in moment.by_name.items() if name in stays)
    asked, allocated = shortage.asked_bytes or 0, shortage.allocated_bytes
    if allocated is not None and shortage.held_bytes is not None:
        yield Part("what stays from step to step", shortage.held_bytes, held)
        passing = [term for term in moment.terms if term.name not in stays]
        names = ", ".join(term.name for term in sorted(passing, key=lambda term: -term.bytes)[:2])
        yield Part(names or "what a step makes", allocated + asked - shortage.held_bytes, moment.bytes - held)
    elif allocated is not None:
        largest = max(moment.terms, key=lambda term: term.bytes)
        yield Part(f"tensors, {largest.name} most of all", allocated + asked, moment.bytes)
    if allocated is not None and shortage.reserved_bytes is not None:
        fix = "launch: {env: {PYTORCH_ALLOC_CONF: 'expandable_segments:True'}}"
        yield Part("holes of the allocator", shortage.reserved_bytes - allocated, estimate.reserve_bytes, fix)
    if shortage.outside_bytes is not None:
        fix = "end what else uses the device (nvidia-smi shows it), or a smaller hardware.memory_budget"
        yield Part("beside the allocator", shortage.outside_bytes, estimate.outside_bytes, fix)


def _held(shortage: Shortage) -> str:
    asked = "memory" if shortage.asked_bytes is None else format_bytes(shortage.asked_bytes)
    if shortage.allocated_bytes is None:
        return f"{asked} was refused"
    return f"{asked} was refused beside {format_bytes(shortage.allocated_bytes)} that tensors held"


def _smaller_budget(verdict: Verdict, moment: Moment, shortage: Shortage, *, grown: bool) -> str:
    """The budget that the job has to fit in: as much smaller as it took more than was estimated, or as it
    was given less."""
    needed = (shortage.allocated_bytes or 0) + (shortage.asked_bytes or 0)
    share = verdict.share * LITTLE_LESS
    if grown:
        share = min(share, verdict.share * moment.bytes / needed)
    elif shortage.allocated_bytes is not None and verdict.memory_bytes:
        share = min(share, verdict.needed_bytes / verdict.memory_bytes * needed / moment.bytes)
    budget = max(math.floor(share * 100) / 100, 0.01)
    return f"`partrain estimate JOB --set hardware.memory_budget={budget:g}` says what to change"
