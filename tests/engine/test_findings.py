"""Which of several findings is the cause of the others, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from partrain.engine.findings import Finding, Search, first_of, in_words
from partrain.model.decoder import decoder_weights
from tests.engine.plans import Case, plan_of

pytestmark = pytest.mark.torch

FOUND = Finding("activation", 3, 7, 2, "the output of layers.2.mlp.up", 1, 0, 64)
WEIGHT = replace(FOUND, kind="weight", layer=5)
GRADIENT = replace(FOUND, kind="gradient", layer=1)


@pytest.mark.parametrize(
    "in_order",
    [
        (WEIGHT, FOUND, GRADIENT),
        (FOUND, replace(FOUND, layer=4, order=1, rank=0)),
        (replace(GRADIENT, layer=4, order=9), GRADIENT),  # backward comes from the end
        (FOUND, replace(FOUND, order=8, rank=0)),
        (replace(FOUND, rank=1), FOUND),
    ],
)
def test_the_first_finding_does_not_depend_on_who_is_asked_first(in_order: tuple[Finding, ...]) -> None:
    assert {first_of(some) for some in permutations(in_order)} == {in_order[0]}


def test_no_finding_has_no_first() -> None:
    assert first_of([]) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            replace(FOUND, rank=3),
            "rank 3 (dp 0, pp 1, tp 1), layer 3 (block 2), the output of layers.2.mlp.up: 1 of",
        ),
        (replace(FOUND, layer=0), "rank 2 (dp 0, pp 1, tp 0), layer 0 (embedding), the output of "),
        (replace(FOUND, layer=8), "rank 2 (dp 0, pp 1, tp 0), layer 8 (head), the output of "),
        (replace(FOUND, num_inf=2), "rank 2 (dp 0, pp 1, tp 0), layer 3 (block 2), "),
    ],
)
def test_a_finding_is_told_with_its_rank_and_layer(found: Finding, words: str) -> None:
    said = in_words(found, plan_of(Case(pp=2, tp=2)))
    assert said.startswith(f"first on {words}")
    assert said.endswith(": 3 of 64 values are nan or inf" if found.num_inf else ": 1 of 64 values are nan")


def test_only_the_first_of_a_kind_is_kept_and_a_tied_head_is_the_last_layer() -> None:
    plan = plan_of(Case(pp=2, tied=True))
    embedding = decoder_weights(plan.model)[0]
    spoilt = torch.tensor([1.0, float("nan"), float("inf"), float("-inf")])
    for rank, layer in ((0, 0), (1, 8)):
        search = Search(plan, rank)
        search.look("weight", "sound", embedding, torch.ones(3))
        search.look("weight", "tokens", embedding, torch.ones(3, dtype=torch.int64))
        search.look("weight", "spoilt", embedding, spoilt)
        search.look("weight", "later", embedding, spoilt)
        assert search.found == {"weight": Finding("weight", layer, 3, rank, "spoilt", 1, 2, 4)}
