"""How much memory a plan takes, and whether that is within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from partrain.cost.estimate import Estimate
from partrain.cost.memory import OPTIMIZER_STATES, Work, estimate
from partrain.cost.quantities import Buckets
from partrain.layout.layout import Layout
from partrain.plan.plan import Plan, StageMemory, StagePlan, TrainingPlan
from partrain.spec.facts import MachineFacts
from partrain.spec.hardware import BY_HAND
from partrain.spec.model import ModelSpec
from partrain.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An estimate against a budget. On CPUs the host's memory is the device's, and all ranks share it: what
    they take together is compared."""

    needed_bytes: int
    """What one device has to have: the worst rank's; on CPUs that of all ranks."""
    memory_bytes: int | None
    """Memory of a device, of the host on CPUs; None: not known."""
    share: float
    """Part of it that may be used."""
    is_shared: bool
    """Whether all ranks share it."""
    stage: int
    """Whose ranks need the most."""

    @property
    def budget_bytes(self) -> int | None:
        """What may be used; None: not known."""
        return None if self.memory_bytes is None else int(self.share * self.memory_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether it is enough; None: not known."""
        return None if self.budget_bytes is None else self.needed_bytes <= self.budget_bytes

    @property
    def over_bytes(self) -> int:
        """Bytes above the budget; below it negative, and 0 where it is not known."""
        return 0 if self.budget_bytes is None else self.needed_bytes - self.budget_bytes


def memory_of(
    model: ModelSpec,
    training: TrainingPlan,
    layout: Layout,
    *,
    machine: MachineFacts,
    deepspeed: Mapping[str, Any],
    stages: Iterable[int] | None = None,
) -> Estimate:
    """The memory of all ranks with this engine configuration, or of those of some `stages`."""
    return estimate(model, work_of(training, deepspeed), layout, machine=machine, stages=stages)


def work_of(training: TrainingPlan, deepspeed: Mapping[str, Any]) -> Work:
    """What of the training and of the engine's configuration decides the memory."""
    zero, types = (deepspeed.get(key) or {} for key in ("zero_optimization", "data_types"))
    return Work(
        sequence_length=training.sequence_length,
        precision=training.precision,
        loss_chunk_size=training.loss_chunk_size,
        grad_accum=types.get("grad_accum_dtype", training.precision),
        optimizer_states=state_bytes(training),
        buckets=Buckets.of(zero),
    )


def state_bytes(training: TrainingPlan) -> int:
    """Bytes of optimizer states a parameter."""
    return OPTIMIZER_STATES[training.optimizer.name]


def plan_memory(plan: Plan) -> Estimate:
    """The memory of all ranks of `plan`."""
    return memory_of(plan.model, plan.training, plan.layout, machine=plan.machine, deepspeed=plan.deepspeed)


def stage_plans(memory: Estimate) -> tuple[StagePlan, ...]:
    """What each stage holds."""
    return tuple(
        StagePlan(
            stage=stage.stage,
            first=stage.first,
            last=stage.last,
            parameters=stage.parameters,
            memory=StageMemory(
                peak_bytes=stage.peak_bytes,
                reserved_bytes=stage.reserved_bytes,
                device_bytes=stage.device_bytes,
                moment=stage.worst.name,
            ),
        )
        for stage in memory.stages
    )


def judged(memory: Estimate, machine: MachineFacts, *, share: float) -> Verdict:
    """`memory` against that part of the machine's."""
    is_shared = machine.device == "cpu"
    return Verdict(
        needed_bytes=memory.host_bytes if is_shared else memory.device_bytes,
        memory_bytes=machine.memory_bytes,
        share=share,
        is_shared=is_shared,
        stage=memory.worst.stage,
    )


def verdict_of(plan: Plan, memory: Estimate) -> Verdict:
    """`memory`, which is that of `plan`, against its budget."""
    return judged(memory, plan.machine, share=plan.memory_budget)


def memory_notes(verdict: Verdict) -> tuple[str, ...]:
    """What a user should know of it, beside the layout's notes."""
    needed = format_bytes(verdict.needed_bytes)
    who = "all ranks together need" if verdict.is_shared else f"a rank of stage {verdict.stage} needs"
    if verdict.fits is None and not verdict.is_shared:
        give = f"hardware: {{{BY_HAND}}} gives it by hand"
        return (f"{who} {needed}, and how much memory the device has is not known; {give}",)
    if verdict.fits is not False:
        return ()
    budget = format_bytes(verdict.budget_bytes or 0)
    return (f"does not fit: {who} {needed} of {budget}; `partrain estimate` says what would make it fit",)
