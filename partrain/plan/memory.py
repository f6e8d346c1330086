"""The memory of a plan's ranks."""

from __future__ import annotations

from partrain.cost.estimate import Estimate
from partrain.cost.memory import OPTIMIZER_STATES, Work, estimate
from partrain.cost.quantities import Buckets
from partrain.plan.plan import Plan


def work_of(plan: Plan) -> Work:
    """What of `plan` decides its memory; buffer sizes are those of its DeepSpeed configuration."""
    training, config = plan.training, plan.deepspeed
    accumulate = config.get("data_types", {}).get("grad_accum_dtype", training.precision)
    return Work(
        sequence_length=training.sequence_length,
        precision=training.precision,
        loss_chunk_size=training.loss_chunk_size,
        grad_accum=accumulate,
        optimizer_states=OPTIMIZER_STATES[training.optimizer.name],
        buckets=Buckets.of(config["zero_optimization"]),
    )


def plan_memory(plan: Plan) -> Estimate:
    """What each rank of `plan` holds, by `cost.memory.estimate`."""
    return estimate(plan.model, work_of(plan), plan.layout, machine=plan.machine)
