"""The global batch's course: Megatron-LM's rule, walked through step by step, is the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.errors import SpecError
from partrain.plan.batch_ramp import layout_in, phase_at, phases, steps_for
from partrain.plan.judge import plan_faults
from partrain.plan.plan import Plan
from partrain.spec.training import BatchRampSection
from tests.plan.jobs import DEMO, planned

RAMP = DEMO.replace("steps: 120", "steps: 120, batch_ramp: {start: 8, increment: 8, samples: 500}")


def walked(ramp: BatchRampSection, batch: int, steps: int) -> list[tuple[int, int]]:
    """(sequences before, sequences) of each step: a step looks at what was consumed before it."""
    found, done, number = [], 0, (batch - ramp.start) // ramp.increment
    for _ in range(steps):
        rises = done * number // ramp.samples
        size = batch if done >= ramp.samples else ramp.start + rises * ramp.increment
        found.append((done, size))
        done += size
    return found


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 500))
def test_phases_are_the_rule_step_by_step(start: int, increment: int, number: int, samples: int) -> None:
    ramp = BatchRampSection(start=start, increment=increment, samples=samples)
    batch = start + number * increment
    for step, (before, size) in enumerate(walked(ramp, batch, 80), start=1):
        phase = [phase for phase in phases(ramp, batch) if phase.first_step <= step][-1]
        assert (phase.sequences_after(step) - size, phase.batch) == (before, size)
        assert steps_for(before + size, ramp, batch) == step
        assert steps_for(before + 1, ramp, batch) == step


def test_without_a_ramp_all_steps_are_alike() -> None:
    (only,) = phases(None, 32)
    assert (only.first_step, only.first_sequence, only.batch) == (1, 0, 32)
    assert steps_for(33, None, 32) == 2


def test_a_plan_counts_its_tokens_by_the_ramp() -> None:
    # 500 sequences in three increments: 21 steps of 8 reach 168 >= 166.7, 11 of 16 reach 344 >= 333.3,
    # 7 of 24 reach 512 >= 500, then whole ones of 32.
    plan = planned(RAMP)
    found = [phase_at(step, plan.training, plan.layout).batch for step in (1, 21, 22, 32, 33, 39, 40, 120)]
    assert found == [8, 8, 16, 16, 24, 24, 32, 32]
    assert phase_at(40, plan.training, plan.layout).sequences_after(40) == 544
    tokens = planned(RAMP.replace("steps: 120", f"tokens: {544 * 128}"))
    assert tokens.training.steps == 40
    assert planned(RAMP.replace("steps: 120", f"tokens: {544 * 128 + 1}")).training.steps == 41


def test_auto_takes_a_micro_batch_that_divides_every_step() -> None:
    plan = planned(RAMP, "parallel.tp=1")
    assert plan.layout.micro_batch_size == 4  # 32 / (4 x pp 2), and it divides 8
    steps = [layout_in(phase, plan.layout) for phase in phases(plan.training.batch_ramp, 32)]
    assert [layout.num_micro_batches for layout in steps] == [2, 4, 6, 8]
    odd = planned(RAMP, "training.batch_ramp.start=2", "training.batch_ramp.increment=6")
    assert odd.layout.micro_batch_size == 2
    assert plan_faults(Plan.from_json(plan.to_json())) == ()


@pytest.mark.parametrize(
    ("changes", "path", "fix"),
    [
        (("training.batch_ramp.start=32",), "training.batch_ramp.start", "leave out batch_ramp"),
        (("training.batch_ramp.increment=9",), "training.batch_ramp.increment", "increment: 8 or 12"),
        (
            ("training.micro_batch_size=16",),
            "training.batch_ramp.start",
            "start: 16; increment: 16; or micro_batch_size: 8",
        ),
        (
            ("parallel.dp=2", "training.batch_ramp.start=5", "training.batch_ramp.increment=9"),
            "training.batch_ramp.start",
            "start: 4 or 6; increment: 8 or 10",
        ),
    ],
)
def test_what_is_no_ramp_is_refused(changes: tuple[str, ...], path: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        planned(RAMP, *changes)
    assert (path, fix) in [(fault.path, fault.fix) for fault in caught.value.faults]


def test_an_edited_plan_is_judged() -> None:
    plan = planned(RAMP)
    ramp = BatchRampSection(start=8, increment=9, samples=500)
    edited = replace(plan, training=replace(plan.training, batch_ramp=ramp))
    assert {fault.path for fault in plan_faults(edited)} == {
        "training.batch_ramp.increment",
    }
