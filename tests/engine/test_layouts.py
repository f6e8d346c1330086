"""Any layout, same training: against a plain loop that knows neither the engine nor any layout."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf

import pytest

from partrain.layout.rules import OFFLOADS
from tests.engine import plain
from tests.engine.plans import EVALUATED, KNOBS, Case, covering_cases, pairs, plan_of
from tests.engine.processes import Found, run_cases

pytestmark = pytest.mark.torch

LARGEST_WORLD = 8
FIRST_LOSS, NORM, LATER_LOSS, BF16_LOSS, BF16_NORM = 1e-6, 1e-5, 1e-5, 2e-3, 2e-2
# Three more bits than bf16 has.
FP16_LOSS, FP16_NORM = BF16_LOSS / 8, BF16_NORM / 8

FP32 = [
    *covering_cases(LARGEST_WORLD),
    Case(pp=2, bounds=(0, 2, 9), evaluate=29),
    Case(pp=3, tp=2, bounds=(0, 6, 8, 9)),
    Case(pp=2, tp=2, sequence_parallel=True, tied=True, num_micro_batches=4),
    Case(
        dp=2,
        pp=2,
        tp=2,
        sequence_parallel=True,
        tied=True,
        shape="gpt2",
        num_micro_batches=3,
        recompute="full",
    ),
    Case(dp=2, grad_clip=0.0),
    Case(dp=2, tp=2, zero=3, evaluate=29),
    Case(tp=2, zero=0, grad_clip=0.0, shape="gpt2"),
    # from one micro-batch up, with three stages fewer than they are
    *(
        Case(ramp=(4, 4, 40), steps=7, **knobs)
        for knobs in (
            {"pp": 3, "num_micro_batches": 6, "tied": True},
            {"dp": 2, "pp": 2, "num_micro_batches": 6, "dropout": 0.1},
            {"tp": 2, "zero": 0, "num_micro_batches": 6},
            {"dp": 2, "zero": 2, "num_micro_batches": 6},
            {"dp": 2, "zero": 2, "offload": "optimizer", "num_micro_batches": 6},
            {"dp": 2, "zero": 3, "offload": "parameters", "num_micro_batches": 6},
        )
    ),
    Case(tp=2, compile=True, sequence_parallel=True, dropout=0.1, recompute="full", num_micro_batches=3),
]
BF16 = [
    Case(precision="bf16", steps=10, **knobs)
    for knobs in (
        {},
        {"dp": 2, "shape": "gpt2", "num_micro_batches": 3},
        {"pp": 2, "tied": True, "num_micro_batches": 4},
        {"tp": 2, "recompute": "full"},
        {"tp": 2, "sequence_parallel": True, "shape": "gpt2", "tied": True},
        {"dp": 3, "num_micro_batches": 2, "chunk_size": 100},
        {"tp": 2, "chunk_size": 7, "label_smoothing": 0.1, "z_loss": 1e-2, "tied": True},
        {"dp": 2, "pp": 2, "tp": 2, "num_micro_batches": 3},
        {"dp": 2, "pp": 2, "tp": 2, "sequence_parallel": True, "recompute": "selective", "tied": True},
        {"dp": 2, "zero": 2, "num_micro_batches": 4, "dropout": 0.1},
        {"dp": 2, "zero": 3, "num_micro_batches": 4, "offload": "parameters", "tied": True},
        {"tp": 2, "zero": 2, "num_micro_batches": 3, "offload": "optimizer", "shape": "gpt2"},
        {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "num_micro_batches": 3, "recompute": "full"},
    )
]
OPTIMIZERS = [
    *(
        Case(optimizer=name, **knobs)
        for name in ("lion", "muon")
        for knobs in (
            {"zero": 0},
            {"tp": 2, "zero": 0, "shape": "gpt2", "grad_clip": 0.0},
            {"pp": 2, "tied": True, "num_micro_batches": 4},
            {"dp": 2, "tp": 2, "sequence_parallel": True, "num_micro_batches": 3},
            {"dp": 2, "zero": 2, "num_micro_batches": 2, "shape": "qwen3"},
        )
    ),
    Case(optimizer="lion", dp=2, tp=2, zero=3, offload="parameters"),
    Case(optimizer="muon", dp=3, pp=2, steps=10),
]
FP16 = [
    Case(precision="fp16", steps=10, **knobs)
    for knobs in (
        {"dp": 2, "num_micro_batches": 4},
        {"pp": 2, "num_micro_batches": 2, "static_scale": True},
        {"pp": 2, "tied": True, "num_micro_batches": 4, "scale_power": 23},
        {"dp": 2, "pp": 2, "tied": True, "num_micro_batches": 3, "scale_power": 23},
        {"tp": 2, "sequence_parallel": True, "shape": "gpt2", "scale_power": 20},
        {"dp": 2, "tp": 2, "pp": 2, "num_micro_batches": 3, "scale_power": 23},
        {"dp": 2, "zero": 2, "num_micro_batches": 4, "scale_power": 22},
        {"dp": 2, "tp": 2, "zero": 3, "num_micro_batches": 3, "scale_power": 22},
        {"dp": 2, "zero": 3, "offload": "optimizer", "num_micro_batches": 2, "scale_power": 21},
        {"dp": 2, "optimizer": "muon", "num_micro_batches": 2, "scale_power": 21},
    )
]
EXHAUSTED = [
    Case(dp=2, pp=2, precision="fp16", scale_power=40, least_power=39),
    Case(tp=2, precision="fp16", scale_power=40, static_scale=True),
]
UNEVALUATED = [
    replace(case, evaluate=0)
    for case in [
        Case(pp=2, tp=2, sequence_parallel=True, tied=True, num_micro_batches=4),
        *(
            next(c for c in FP32 if c.zero == zero and (c.dp, c.tp) == (dp, 2))
            for zero, dp in ((2, 2), (3, 2))
        ),
        next(case for case in FP32 if case.zero == 0 and case.shape == "gpt2"),
        Case(precision="bf16", steps=10, dp=2, pp=2, tp=2, num_micro_batches=3),
    ]
]
CONTROLS = [
    Case(tp=2, sabotage="unmarked shard"),
    Case(tp=2, sequence_parallel=True, sabotage="norm gradient not summed"),
    Case(tp=2, shape="qwen3", steps=10, sabotage="head norm gradient not summed"),
    Case(pp=2, tied=True, sabotage="tied gradient not summed"),
    Case(dp=2, sabotage="data off by one sample"),
    Case(tp=2, optimizer="muon", sabotage="momentum not gathered"),
    Case(dp=3, optimizer="muon", steps=10, sabotage="momentum not gathered"),
    Case(dp=2, num_micro_batches=2, sabotage="filling of evaluation counted"),
    Case(tp=2, sequence_parallel=True, dropout=0.1, sabotage="one dropout stream for all tensor ranks"),
    Case(dp=2, dropout=0.1, sabotage="one dropout stream for all replicas"),
    Case(dropout=0.1, recompute="full", sabotage="dropout drawn again on recompute"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Found]:
    cases = [*FP32, *OPTIMIZERS, *BF16, *FP16, *EXHAUSTED, *UNEVALUATED, *CONTROLS]
    return run_cases(cases, tmp_path_factory.mktemp("worlds"))


@lru_cache
def reference(case: Case) -> list[plain.Step]:
    return plain.train(plan_of(case), 10)


def expected(case: Case) -> list[plain.Step]:
    """What the plain loop gives for the case's model and numbers; its layout plays no part."""
    numbers = ("shape", "tied", "precision", "grad_clip", "label_smoothing", "z_loss", "optimizer", "ramp")
    numbers += ("dropout",)
    same = Case(evaluate=case.evaluate or EVALUATED, **{name: getattr(case, name) for name in numbers})
    return reference(replace(same, tp=8 if case.tp == 8 else 1))[: case.steps]


def deviations(case: Case, found: Found) -> tuple[float, float, float]:
    """First loss (absolute), worst gradient norm (relative), worst later or evaluated loss (absolute)."""
    steps = expected(case)
    losses = [abs(loss - step.loss) for (loss, _), step in zip(found.steps, steps, strict=True)]
    norms = [abs(norm / step.grad_norm - 1) for (_, norm), step in zip(found.steps, steps, strict=True)]
    (evaluated,) = found.evaluated
    return losses[0], norms[0], max(*losses[1:], abs(evaluated - steps[1].evaluated))


@pytest.mark.parametrize("case", FP32, ids=str)
def test_fp32_equals_a_plain_loop_under_every_layout(case: Case, results: dict[Case, Found]) -> None:
    first, norm, later = deviations(case, results[case])
    assert first <= FIRST_LOSS
    assert norm <= NORM
    assert later <= LATER_LOSS


@pytest.mark.parametrize("case", OPTIMIZERS, ids=str)
def test_every_optimizer_equals_its_papers_in_a_plain_loop(case: Case, results: dict[Case, Found]) -> None:
    first, norm, later = deviations(case, results[case])
    assert first <= FIRST_LOSS
    assert norm <= NORM
    assert later <= LATER_LOSS


@pytest.mark.parametrize("case", FP16, ids=str)
def test_fp16_equals_a_plain_loop_that_skips_the_same_steps(case: Case, results: dict[Case, Found]) -> None:
    found = results[case]
    skipped = frozenset(step for step, (_, norm) in enumerate(found.steps, 1) if norm == inf)
    # 2^10 suits these gradients; above it steps are skipped, the first twice as a scale is tolerated once.
    assert skipped == frozenset() if case.scale_power == 10 else {1, 2} <= skipped
    assert len(skipped) < case.steps - 1
    steps = plain.train(plan_of(replace(case, dp=1, pp=1, tp=1)), case.steps, left_out=tuple(skipped))
    for (loss, norm), step in zip(found.steps, steps, strict=True):
        assert abs(loss - step.loss) <= FP16_LOSS
        assert norm == inf or abs(norm / step.grad_norm - 1) <= FP16_NORM
    assert found.evaluated == pytest.approx([steps[1].evaluated], abs=FP16_LOSS)


@pytest.mark.parametrize("case", EXHAUSTED, ids=str)
def test_a_loss_scale_that_cannot_fall_ends_the_run_on_every_rank(
    case: Case, results: dict[Case, Found]
) -> None:
    # Step 1 is tolerated, step 2 brings the scale to its least; one that is given cannot fall at all.
    assert [norm for _, norm in results[case].steps] == ([inf] if case.static_scale else [inf, inf])


@pytest.mark.parametrize("case", BF16, ids=str)
def test_bf16_equals_a_plain_loop(case: Case, results: dict[Case, Found]) -> None:
    first, norm, later = deviations(case, results[case])
    assert max(first, later) <= BF16_LOSS
    assert norm <= BF16_NORM


@pytest.mark.parametrize("case", CONTROLS, ids=str)
def test_a_fault_in_the_engine_breaks_a_bound_tenfold(case: Case, results: dict[Case, Found]) -> None:
    first, norm, later = deviations(case, results[case])
    assert first > 10 * FIRST_LOSS or norm > 10 * NORM or later > 10 * LATER_LOSS


def test_the_cases_cover_every_layout_and_every_pair_of_knobs() -> None:
    knobs = {
        "dp": (False, True),
        "pp": (False, True),
        "tp": (False, True),
        "sequence_parallel": (False, True),
        "zero": (0, 1, 2, 3),
        "offload": tuple(OFFLOADS),
        **KNOBS,
    }
    impossible = {  # a pipeline takes zero 1 alone, sequence parallelism needs a tensor group
        *((("pp", True), ("zero", zero)) for zero in (0, 2, 3)),
        *((("offload", name), ("pp", True)) for name, legal in OFFLOADS.items() if 1 not in legal),
        *((("offload", name), ("zero", z)) for name, legal in OFFLOADS.items() for z in {0, 1, 2} - {*legal}),
        (("sequence_parallel", True), ("tp", False)),
    }
    wanted = {
        pair for values in product(*knobs.values()) for pair in pairs(dict(zip(knobs, values, strict=True)))
    }
    met = set()
    for case in FP32:
        axes = {axis: getattr(case, axis) > 1 for axis in ("dp", "pp", "tp")}
        others = {"recompute": case.recompute, "tied": case.tied, "shape": case.shape}
        others |= {"chunk_size": case.chunk_size, "shaped": case.z_loss > 0}
        others |= {"sequence_parallel": case.sequence_parallel, "zero": case.zero}
        others |= {"offload": case.offload, "dropout": case.dropout}
        met |= set(pairs({**axes, **others, "several": case.num_micro_batches > 1}))
    assert wanted - impossible <= met
    assert {case.dp for case in FP32} >= {1, 2, 3, 4, 6, 8}
    assert sum(case.steps == 10 for case in FP32) >= 12


def test_the_same_layout_twice_is_bit_equal(results: dict[Case, Found], tmp_path) -> None:  # type: ignore[no-untyped-def]
    case = replace(FP32[0], steps=3)
    assert run_cases([case], tmp_path)[case].steps == results[FP32[0]].steps[:3]


@pytest.mark.parametrize("case", UNEVALUATED, ids=str)
def test_training_is_bit_equal_with_and_without_evaluation(case: Case, results: dict[Case, Found]) -> None:
    evaluated = results[replace(case, evaluate=EVALUATED)]
    assert results[case].evaluated == []
    assert results[case].steps == evaluated.steps
