"""A plan's own numbers reach the estimate."""

from partrain.plan.memory import plan_memory, work_of
from tests.plan.jobs import DEMO, planned


def test_the_buckets_are_those_of_the_plan() -> None:
    plan = planned()
    assert (
        work_of(plan.training, plan.deepspeed).buckets.reduce
        == plan.deepspeed["zero_optimization"]["reduce_bucket_size"]
    )


def test_bf16_accumulates_as_the_plan_says() -> None:
    plan = planned(DEMO, "training.precision=bf16")
    assert (
        work_of(plan.training, plan.deepspeed).grad_accum
        == plan.deepspeed["data_types"]["grad_accum_dtype"]
        == "fp32"
    )


def test_each_stage_of_the_plan_has_its_estimate() -> None:
    plan = planned()
    stages = plan_memory(plan).stages
    assert [(stage.first, stage.last, stage.parameters) for stage in stages] == [
        (stage.first, stage.last, stage.parameters) for stage in plan.stages
    ]
