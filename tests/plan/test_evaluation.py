"""What is evaluated and when, and what stands against it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partrain.errors import Fault, SpecError
from partrain.plan.decide import decide
from partrain.plan.judge import plan_faults
from partrain.plan.plan import EvaluationPlan, Plan
from partrain.spec.facts import DatasetFacts
from partrain.spec.values import plain
from tests.plan.jobs import BYTES, CPU, DEMO, planned, read

SHARE = "data.validation=1%"
HELD = DatasetFacts(source="/corpus/held.bin", num_tokens=1000, vocab_size=256)


def evaluation_of(*overrides: str, data: DatasetFacts = BYTES) -> EvaluationPlan:
    found = planned(DEMO, SHARE, *overrides, data=data).evaluation
    assert found is not None
    return found


def with_file(validation: DatasetFacts | None, *overrides: str, data: DatasetFacts = BYTES) -> Plan:
    reading = read(DEMO, "data.validation=held.bin", *overrides)
    return decide(reading, machine=CPU, data=data, validation=validation)


def faults(validation: DatasetFacts, *overrides: str, data: DatasetFacts = BYTES) -> dict[str, Fault]:
    with pytest.raises(SpecError) as caught:
        with_file(validation, *overrides, data=data)
    return {fault.message: fault for fault in caught.value.faults}


def test_a_share_is_the_last_sequences_of_the_training_data() -> None:
    # 9,999,999 // 128 = 78,124 sequences of 128 tokens; a hundredth of them, rounded down, is 781.
    found = evaluation_of("training.evaluate.batches=all")
    assert (found.data, found.first, found.num_sequences) == (BYTES, 77_343, 781)
    assert planned(DEMO, SHARE).end_of_training_data == 77_343


@pytest.mark.parametrize("share", ["0.29", "29%", "29.0%"])
def test_a_share_is_not_rounded_below_itself(share: str) -> None:
    hundred = replace(BYTES, num_tokens=100 * 128 + 1)
    found = evaluation_of(f"data.validation={share}", "training.evaluate.batches=all", data=hundred)
    assert (found.first, found.num_sequences) == (71, 29)


@pytest.mark.parametrize(
    ("steps", "every", "batches"), [(5, 1, 1), (120, 12, 1), (9_000, 900, 90), (10**6, 1000, 100)]
)
def test_auto_evaluates_ten_times_or_every_thousand_steps(steps: int, every: int, batches: int) -> None:
    found = evaluation_of(f"training.steps={steps}", "data.validation=50%")
    assert (found.every, found.num_sequences) == (every, 32 * batches)


def test_auto_takes_the_whole_of_a_small_set() -> None:
    plan = planned(DEMO, SHARE, "training.evaluate.every=1000")
    assert plan.evaluation is not None
    assert plan.evaluation.num_sequences == 781  # of which 100 batches of 32 would be more
    assert plan.origins["training.evaluate.batches"] == "auto: the whole set"


def test_batches_are_global_ones() -> None:
    assert evaluation_of("training.evaluate.batches=3").num_sequences == 96


def test_it_is_due_every_so_many_steps_and_at_the_end() -> None:
    found = evaluation_of("training.evaluate.every=4")
    assert [step for step in range(1, 11) if found.is_due(step, steps=10)] == [4, 8, 10]


def test_without_validation_nothing_is_evaluated() -> None:
    plan = planned()
    assert (plan.evaluation, plan.end_of_training_data) == (None, None)
    assert not any("evaluate" in path for path in plan.origins)


def test_a_file_is_evaluated_from_its_start_and_training_uses_all() -> None:
    plan = with_file(HELD, "training.evaluate.batches=all")
    assert plan.evaluation == EvaluationPlan(every=12, data=HELD, first=0, num_sequences=7)  # 999 // 128
    assert plan.end_of_training_data is None


def test_a_file_that_was_not_looked_at_is_a_misuse() -> None:
    with pytest.raises(ValueError, match="without a fault"):
        with_file(None)


def test_the_training_data_is_no_validation_data() -> None:
    data = replace(HELD, source="/corpus/train.bin")
    found = faults(data, data=data)["the validation data is the training data"]
    assert (found.path, found.fix) == ("data.validation", "validation: 1%")


def test_another_vocabulary_and_too_few_tokens_are_told_at_once() -> None:
    found = faults(replace(HELD, vocab_size=512, num_tokens=128))
    assert set(found) == {
        "the validation data has a vocabulary of 512, the training data one of 256",
        "128 tokens are too few for a sequence of 128 and the token after it",
    }
    smaller = faults(replace(HELD, vocab_size=100))
    assert set(smaller) == {"the validation data has a vocabulary of 100, the training data one of 256"}


def test_beside_random_tokens_a_vocabulary_must_fit_the_model() -> None:
    endless = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    assert with_file(HELD, data=endless).evaluation is not None
    found = faults(replace(HELD, vocab_size=512), data=endless)
    assert set(found) == {"the validation data has a vocabulary of 512, the model one of 256"}


def test_endless_data_has_no_last_part() -> None:
    endless = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    with pytest.raises(SpecError, match="has no end, so no last part can be held back"):
        planned(DEMO, SHARE, data=endless)


def test_one_sequence_cannot_be_shared() -> None:
    with pytest.raises(SpecError, match="has 1 sequences of 128 tokens, and none to hold back"):
        planned(DEMO, "data.validation=50%", data=replace(BYTES, num_tokens=129))


def edited(plan: Plan, **changes: int) -> set[str]:
    values = plain(plan)
    values["evaluation"] |= changes
    return {f"{fault.path}: {fault.message}" for fault in plan_faults(Plan.from_json(json.dumps(values)))}


def test_an_edited_plan_is_judged() -> None:
    plan = planned(DEMO, SHARE)
    assert edited(plan) == set()
    assert edited(plan, first=0) == {"evaluation.first: nothing is left to train on"}
    assert edited(plan, num_sequences=782) == {
        "evaluation.num_sequences: 782 sequences from 77343 on came, and there are 78124"
    }
    assert edited(with_file(HELD), num_sequences=8) == {
        "evaluation.num_sequences: 8 sequences from 0 on came, and there are 7"
    }
