"""A plan's memory against its budget, and what the plan carries of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partrain.cost.estimate import Estimate, Moment, StageEstimate, Term
from partrain.plan.judge import plan_faults
from partrain.plan.memory import judged, memory_notes, plan_memory, verdict_of
from partrain.plan.plan import Plan
from partrain.spec.catalog import node
from partrain.spec.facts import MachineFacts
from tests.plan.jobs import CPU, DEMO, planned

GIB = 2**30


def a_stage(stage: int, gib: int) -> StageEstimate:
    """`gib` allocated, 1 GiB of reserve, 2 GiB outside the allocator."""
    return StageEstimate(
        stage=stage,
        first=stage,
        last=stage,
        parameters=1,
        moments=(Moment("step", (Term("all", gib * GIB, ""),)),),
        replicated_bytes=0,
        reserve_bytes=GIB,
        outside_bytes=2 * GIB,
    )


MEMORY = Estimate(
    stages=(a_stage(0, 7), a_stage(1, 5)),
    host=(Term("all ranks", 24 * GIB, ""),),
    checkpoint_bytes=0,
    assumptions=(),
)


def machine(gib: float | None, device: str = "cuda") -> MachineFacts:
    size = None if gib is None else int(gib * GIB)
    return replace(CPU, device=device, memory_bytes=size)


def test_a_device_has_to_hold_its_own_rank() -> None:
    # 7 + 1 + 2 = 10 GiB on stage 0; half of 20 GiB is just enough, of 19 GiB it is half a GiB short.
    enough, short = (judged(MEMORY, machine(gib), share=0.5) for gib in (20, 19))
    assert (enough.fits, enough.over_bytes, enough.stage) == (True, 0, 0)
    assert (short.fits, short.over_bytes) == (False, GIB // 2)


def test_a_host_without_devices_has_to_hold_all_ranks() -> None:
    enough, short = (judged(MEMORY, machine(gib, "cpu"), share=0.75) for gib in (32, 31))
    assert (enough.needed_bytes, enough.fits, short.fits) == (24 * GIB, True, False)


def test_without_a_memory_size_nothing_is_said() -> None:
    verdict = judged(MEMORY, machine(None), share=0.9)
    assert (verdict.fits, verdict.budget_bytes, verdict.over_bytes) == (None, None, 0)
    assert "memory_gib" in memory_notes(verdict)[0]


def test_a_plan_says_that_it_does_not_fit() -> None:
    said = memory_notes(judged(MEMORY, machine(19), share=0.5))
    needs = "does not fit: a rank of stage 0 needs 10.0 GiB of 9.5 GiB"
    assert said == (f"{needs}; `partrain estimate` says what would make it fit",)
    assert memory_notes(judged(MEMORY, machine(20), share=0.5)) == ()


LARGE = (
    "model.preset=llama-3.1-8b",
    "training.sequence_length=2048",
    "hardware.node=8xl4",
    "training.loss_chunk_size=none",
)


@pytest.mark.parametrize("overrides", [(), LARGE])
def test_a_plan_carries_each_stages_peak(overrides: tuple[str, ...]) -> None:
    plan = planned(DEMO, *overrides)
    memory = plan_memory(plan)
    carried = [stage.memory for stage in plan.stages]
    assert [(part.peak_bytes, part.device_bytes) for part in carried if part] == [
        (stage.peak_bytes, stage.device_bytes) for stage in memory.stages
    ]
    assert Plan.from_json(plan.to_json()) == plan
    assert verdict_of(plan, memory).fits is (False if overrides else None)


def test_the_budget_of_the_job_is_the_plans() -> None:
    machine = node("8xh100")
    plan = planned(DEMO, "hardware.memory_budget=0.5", machine=machine)
    assert plan.memory_budget == 0.5
    assert verdict_of(plan, plan_memory(plan)).budget_bytes == (machine.memory_bytes or 0) // 2


def test_numbers_by_hand_make_a_machine() -> None:
    plan = planned(DEMO, "hardware.node={name: new, num_devices: 4, memory_gib: 10.5, bf16_tflops: 100}")
    found = plan.machine
    assert (found.name, found.num_devices, found.memory_bytes) == ("new", 4, int(10.5 * GIB))
    assert (found.bf16_flops, found.fp32_flops) == (1e14, None)
    assert plan.training.precision == "bf16"


def test_predictions_in_an_edited_plan_are_no_fault() -> None:
    plan = planned()
    without = replace(plan, stages=tuple(replace(stage, memory=None) for stage in plan.stages))
    assert plan_faults(without) == ()
    assert plan_faults(replace(plan, stages=tuple(replace(s, parameters=1) for s in plan.stages))) != ()
