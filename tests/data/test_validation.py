"""What is held back is not trained on, and what is evaluated is what the plan names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.data.facts import find_facts, find_validation_facts
from partrain.data.order import positions, sample_index
from partrain.data.sources import open_source, open_sources
from partrain.errors import DataError
from partrain.layout.layout import Layout
from partrain.plan.plan import EvaluationPlan
from partrain.spec.facts import DatasetFacts
from tests.data.test_sources import write_tokens
from tests.run.plans import a_plan


@given(st.integers(1, 200), st.integers(1, 5), st.sampled_from([(1, 4), (2, 1), (3, 2)]), st.integers(0, 99))
def test_no_step_reaches_what_is_held_back(end: int, steps: int, shape: tuple[int, int], seed: int) -> None:
    dp, micro = shape
    layout = Layout(dp, 1, 1, 1, False, micro, 3, "none", (0, 3))
    seen = {
        sample_index(position, num_samples=end, seed=seed)
        for step in range(1, steps + 1)
        for replica in range(dp)
        for number in range(3)
        for position in positions(step, layout, replica=replica, micro_batch=number)
    }
    assert max(seen) < end
    if steps * dp * micro * 3 >= end:
        assert seen == set(range(end))


def test_training_ends_where_the_set_begins_and_both_read_one_file(tmp_path: Path) -> None:
    facts = find_facts(str(write_tokens(tmp_path, list(range(170)))))
    wish = EvaluationPlan(every=1, data=facts, first=8, num_sequences=2)
    plan = a_plan(data=facts, evaluation=wish)  # sequences of 16: 169 // 16 = 10 of them
    sources = open_sources(replace(plan, model=replace(plan.model, vocab_size=1000)))
    assert sources.all == (sources.train,)
    assert sources.validation is sources.train
    assert sources.train.num_samples == 8
    assert sources.train.sample(9).tolist() == list(range(144, 161))


def test_a_file_of_its_own_is_opened_whole(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    facts = find_facts(str(write_tokens(tmp_path, list(range(50)))))
    held = find_facts(str(write_tokens(tmp_path / "held", list(range(100, 150)))))
    plan = a_plan(data=facts, evaluation=EvaluationPlan(every=1, data=held, first=0, num_sequences=3))
    train, validation = open_sources(replace(plan, model=replace(plan.model, vocab_size=1000))).all
    assert (train.num_samples, validation.num_samples) == (3, 3)
    assert validation.sample(0).tolist() == list(range(100, 117))


def test_the_end_does_not_add_samples(tmp_path: Path) -> None:
    facts = find_facts(str(write_tokens(tmp_path, list(range(20)))))
    assert open_source(facts, sequence_length=4, vocab_size=1000, seed=1, end=99).num_samples == 4


def validation_faults(source: object, train: DatasetFacts | None = None) -> list[tuple[str, str]]:
    with pytest.raises(DataError) as caught:
        find_validation_facts(str(source), train)
    assert {fault.path for fault in caught.value.faults} == {"data.validation"}
    return [(fault.message, fault.allowed) for fault in caught.value.faults]


@pytest.mark.parametrize("slip", ["1 percent", "0,01", "none", "held.txt"])
def test_what_names_no_file_is_told_of_every_form(tmp_path: Path, slip: str) -> None:
    (tmp_path / "held.txt").write_text("text")
    ((_, allowed),) = validation_faults(tmp_path / slip)
    assert allowed.startswith("a share of the training data (1% or 0.01), a .bin file with its .json")


@pytest.mark.parametrize("source", ["synthetic", "builtin:python-source", "builtin:other"])
def test_a_built_in_source_is_for_training(source: str) -> None:
    ((message, allowed),) = validation_faults(source)
    assert message == f"{source} is for training alone"
    assert allowed.startswith("a share of the training data")


def test_a_damaged_file_is_told_under_its_own_key(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [1, 2, 3])
    path.write_bytes(b"")
    ((message, _),) = validation_faults(path)
    assert "3 tokens short" in message


def test_the_training_file_under_another_name_is_known(tmp_path: Path) -> None:
    train = find_facts(str(write_tokens(tmp_path, [1, 2, 3])))
    for suffix in (".bin", ".json"):
        (tmp_path / f"link{suffix}").symlink_to(tmp_path / f"corpus{suffix}")
    assert find_validation_facts(str(tmp_path / "link.bin"), train) == train
    assert find_validation_facts(str(tmp_path / "link.bin"), None).source == str(tmp_path / "link.bin")
