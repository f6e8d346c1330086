"""Trainings that are spoilt at a step on one rank: found in that step on all, named, outlived or ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from partrain.run.metrics import record_from
from partrain.run.records import StepRecord
from partrain.spec.guard import GuardSection
from tests.engine import plain
from tests.engine.plans import Case, plan_of
from tests.engine.processes import run_world
from tests.engine.test_layouts import BF16_LOSS, BF16_NORM, LATER_LOSS

pytestmark = pytest.mark.torch

RANKS = 4
LATER_NORM = 1e-4  # relative; rounding grows from step to step
UP = "layers.5.mlp.up"
ACTIVATION, GRADIENT, WEIGHT, STEPS = 2, 4, 6, 9
"""The steps in which one thing each goes wrong, and more steps than there will be."""


@dataclass(frozen=True)
class Fault:
    """What is spoilt; `rank` None: on all."""

    kind: str
    step: int
    rank: int | None = None
    weight: str = f"{UP}.weight"


@dataclass(frozen=True)
class Spoilt:
    """A training and its faults."""

    case: Case
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Ending:
    """What ended the training, the same on every rank (empty: nothing did), and its records."""

    said: str
    records: tuple[StepRecord, ...]


SKIP = GuardSection(nan="skip", max_skipped_steps=1)
LAYOUTS = {
    "zero 0": (3, Case(dp=2, tp=2, zero=0, num_micro_batches=2)),
    "pipeline": (3, Case(pp=2, tp=2, sequence_parallel=True, num_micro_batches=3, recompute="full")),
    "pipeline in bf16": (2, Case(dp=2, pp=2, precision="bf16", num_micro_batches=2, tied=True)),
    "zero 2": (1, Case(dp=2, tp=2, zero=2, num_micro_batches=2)),
    "zero 2 offloaded": (
        2,
        Case(dp=2, tp=2, zero=2, num_micro_batches=3, offload="optimizer", precision="bf16"),
    ),
    "zero 3": (3, Case(dp=4, zero=3, num_micro_batches=2, recompute="full")),
    "zero 3 offloaded": (3, Case(dp=2, tp=2, zero=3, offload="parameters", tied=True, precision="bf16")),
}
"""The rank that is spoilt, which has block 5, and the layout."""
SKIPPED = {
    name: Spoilt(
        replace(case, steps=STEPS, guard=SKIP),
        (
            Fault("activation", ACTIVATION, rank),
            Fault("gradient", GRADIENT, rank),
            Fault("weight", WEIGHT, rank),
        ),
    )
    for name, (rank, case) in LAYOUTS.items()
}
STOPPED = Spoilt(replace(LAYOUTS["pipeline"][1], steps=STEPS), (Fault("activation", 2, 3),))
PASSING = Spoilt(Case(pp=2, tp=2, steps=5, guard=SKIP), (Fault("passing", 2, 3),))
JUMP = 36
JUMPS = {
    wish: Spoilt(
        Case(pp=2, tp=2, steps=JUMP + 2, guard=GuardSection(loss_spike=wish)),
        (Fault("growth", JUMP, weight="head.weight"),),
    )
    for wish in ("warn", "stop")
}
ALL = [*SKIPPED.values(), STOPPED, PASSING, *JUMPS.values()]


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[Spoilt, Ending]:
    work = [
        {"plan": plan_of(s.case).to_json(), "steps": s.case.steps, "faults": [asdict(f) for f in s.faults]}
        for s in ALL
    ]
    folder = tmp_path_factory.mktemp("guards") / "world"
    run_world("tests.engine.spoilt_world", work, RANKS, folder)
    said = [(folder / f"said-{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    assert said == [said[0]] * RANKS
    return {
        some: Ending(json.loads(said[0][number]), records(folder / f"run-{number}"))
        for number, some in enumerate(ALL)
    }


def records(folder: Path) -> tuple[StepRecord, ...]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [record for line in lines if (record := record_from(line))]
    assert len(found) == len(lines)
    return tuple(found)


def place(name: str) -> str:
    """Rank, coordinates and layer of the fault, by hand: ranks go pipe, data, tensor, the last fastest."""
    rank, case = LAYOUTS[name]
    stage, rest = divmod(rank, case.dp * case.tp)
    at = f"dp {rest // case.tp}, pp {stage}, tp {rest % case.tp}"
    return f"first on rank {rank} ({at}), layer 6 (block 5), "


@pytest.mark.parametrize("name", LAYOUTS)
def test_inf_in_one_rank_s_batch_is_named(name: str, endings: dict[Spoilt, Ending]) -> None:
    said = endings[SKIPPED[name]].records[ACTIVATION - 1].warning
    start = f"step {ACTIVATION}: the loss is not finite, {place(name)}the output of {UP}: 1 of "
    assert said.startswith(start)
    assert said.endswith(" values are inf; its update is left out (1 of 1)")


@pytest.mark.parametrize("name", LAYOUTS)
def test_inf_in_one_rank_s_gradient_is_named(name: str, endings: dict[Spoilt, Ending]) -> None:
    said = endings[SKIPPED[name]].records[GRADIENT - 1].warning
    assert said.startswith(f"step {GRADIENT}: the gradient is not finite, {place(name)}the gradient of ")
    assert f"the gradient of the output of {UP}: 1 of " in said
    assert said.endswith(" values are inf; its update is left out (1 of 1)")


@pytest.mark.parametrize("name", LAYOUTS)
def test_nan_in_one_rank_s_weight_is_named_and_not_skipped_for_ever(
    name: str, endings: dict[Spoilt, Ending]
) -> None:
    ending = endings[SKIPPED[name]]
    found = f"step {WEIGHT}: the loss is not finite, {place(name)}{UP}.weight: 3 of "
    assert ending.records[WEIGHT - 1].warning.startswith(found)
    start = f"2 steps in a row had to be skipped, guard.max_skipped_steps=1 are allowed; {found}"
    assert ending.said.startswith(start)
    assert ending.said.endswith(" values are nan")
    assert len(ending.records) == WEIGHT


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_skipped_update_leaves_all_as_it_was(name: str, endings: dict[Spoilt, Ending]) -> None:
    """Weights, moments and the count of steps: the steps after it are those of a plain loop without it."""
    some = SKIPPED[name]
    found, without = endings[some].records, (ACTIVATION, GRADIENT)
    assert [record.step for record in found if record.skipped] == [*without, WEIGHT]
    expected = plain.train(plan_of(some.case), WEIGHT - 1, left_out=without)
    in_bf16 = some.case.precision == "bf16"
    for record, step in zip(found, expected, strict=False):
        if not record.skipped:
            assert record.warning == ""
            assert abs(record.loss - step.loss) <= (BF16_LOSS if in_bf16 else LATER_LOSS)
            assert abs(record.grad_norm / step.grad_norm - 1) <= (BF16_NORM if in_bf16 else LATER_NORM)


def test_a_step_that_is_not_finite_ends_the_run_unless_it_may_be_skipped(
    endings: dict[Spoilt, Ending],
) -> None:
    said = endings[STOPPED].said
    assert said.startswith(f"step 2: the loss is not finite, {place('pipeline')}the output of {UP}: 1 of ")
    assert len(endings[STOPPED].records) == 1


def test_a_fault_that_has_passed_costs_no_update(endings: dict[Spoilt, Ending]) -> None:
    """As of a device that errs once: the step is done again, and the training is that of a plain loop."""
    found = endings[PASSING].records
    assert [(record.step, record.skipped) for record in found if record.warning] == [(2, False)]
    assert found[1].warning.endswith(
        "step 2: the loss is not finite, but was when the step was run again: no fault of data or weights;"
        " that second update was made"
    )
    for record, step in zip(found, plain.train(plan_of(PASSING.case), 5), strict=True):
        assert abs(record.loss - step.loss) <= LATER_LOSS
        assert abs(record.grad_norm / step.grad_norm - 1) <= LATER_NORM


def test_a_spike_of_the_loss_is_told_once_and_outlived(endings: dict[Spoilt, Ending]) -> None:
    ending = endings[JUMPS["warn"]]
    assert ending.said == ""
    told = {record.step: record.warning for record in ending.records if record.warning}
    assert set(told) == {JUMP}
    assert told[JUMP].startswith(f"step {JUMP}: the loss jumped to ")
    assert ending.records[JUMP].loss < 1.1 * ending.records[JUMP - 2].loss


def test_a_spike_of_the_loss_ends_the_run_in_its_step(endings: dict[Spoilt, Ending]) -> None:
    ending = endings[JUMPS["stop"]]
    assert ending.said.startswith(f"step {JUMP}: the loss jumped to ")
    assert len(ending.records) == JUMP - 1
