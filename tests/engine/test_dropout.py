"""The mask law: its rate, its independence, and what it depends on; streams of the attention kernel."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from partrain.engine.dropout import Samples, dropped
from partrain.engine.groups import TensorGroup
from partrain.engine.tensor_parallel import Region
from tests.engine import plain
from tests.engine.plans import Case, plan_of

pytestmark = pytest.mark.torch

RATE = 0.1


def samples(seed: int = 3, replica: int = 0, rank: int = 0, split: bool = False, **case: int) -> Samples:
    plan = plan_of(Case(dropout=RATE, **{"num_micro_batches": 2, **case}))
    region = Region(TensorGroup(rank, plan.layout.tp), sequence_parallel=split)
    return Samples(replace(plan.training, seed=seed), plan.layout, replica, region)


def kept(at: Samples, step: int, micro_batch: int, site: int, shape: tuple[int, ...] = (12, 16, 32)):  # type: ignore[no-untyped-def]
    at.begin(step)
    module = torch.nn.Identity()
    at.follow(module)
    for _ in range(micro_batch + 1):
        module(torch.ones(1))
    x = torch.ones(shape)
    return dropped(x, at.mask(x, site), RATE) != 0


def test_a_tenth_is_dropped_and_the_mean_stays() -> None:
    # 1.5 million draws: the rate's own error is sqrt(0.1 x 0.9 / 1.5e6) = 2.4e-4
    at, x = samples(), torch.ones(12, 64, 2048)
    at.begin(1)
    at.micro_batch = 0
    y = dropped(x, at.mask(x, 5), RATE)
    assert abs((y == 0).float().mean().item() - RATE) < 1e-3
    assert abs(y.mean().item() - 1) < 1e-3
    assert y.unique().tolist() == pytest.approx([0, 1 / 0.9])
    for dims in ((0, 1), (0, 2), (1, 2)):
        part = (y == 0).float().mean(dims)
        spread = (RATE * 0.9 * part.numel() / y.numel()) ** 0.5
        assert (part - RATE).abs().max() < 6 * spread


def test_masks_of_other_places_have_no_more_in_common_than_chance() -> None:
    here = kept(samples(), 1, 0, 1)
    others = {
        "site": kept(samples(), 1, 0, 2),
        "embedding": kept(samples(), 1, 0, 0),
        "block": kept(samples(), 1, 0, 3),
        "step": kept(samples(), 2, 0, 1),
        "micro-batch": kept(samples(), 1, 1, 1),
        "replica": kept(samples(dp=2, replica=1, num_micro_batches=1), 1, 0, 1),
        "seed": kept(samples(seed=4), 1, 0, 1),
        "sample": here.roll(1, 0),
        "token": here.roll(1, 1),
        "hidden": here.roll(1, 2),
    }
    # Both keep 0.81 of 6144 elements, with a deviation of sqrt(0.81 x 0.19 / 6144) = 0.005.
    for place, other in others.items():
        assert abs((here & other).float().mean().item() - 0.81) < 0.025, place


def test_the_same_place_has_the_same_mask_under_every_layout() -> None:
    whole = kept(samples(num_micro_batches=1), 2, 0, 4, (24, 16, 32))
    halves = [kept(samples(dp=2, replica=r, num_micro_batches=1), 2, 0, 4) for r in (0, 1)]
    assert torch.equal(torch.cat(halves), whole)
    micro = [kept(samples(), 2, m, 4) for m in (0, 1)]
    assert torch.equal(torch.cat(micro), whole)
    shape = (24, 8, 32)
    parts = [kept(samples(tp=2, rank=r, split=True, num_micro_batches=1), 2, 0, 4, shape) for r in (0, 1)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(plain.kept((24, 16, 32), plan_of(Case(dropout=RATE)), 2, 4), whole)


def test_micro_batches_count_in_training_only() -> None:
    at, module = samples(), torch.nn.Identity()
    at.follow(module)
    at.begin(1)
    module(torch.ones(1))
    module.eval()
    module(torch.ones(1))
    assert at.micro_batch == 0
    module.train()
    module(torch.ones(1))
    assert at.micro_batch == 1
    module(torch.ones(1))
    with pytest.raises(ValueError, match="micro-batch 2"):
        at.mask(torch.ones(1, 16, 32), 0)


def test_every_attention_has_a_stream_of_its_own() -> None:
    seeds = set()
    for replica, rank, step, micro_batch, block in product((0, 1), (0, 1), (1, 2), (0, 1), (0, 1)):
        at = samples(dp=2, tp=2, replica=replica, rank=rank)
        at.begin(step)
        at.micro_batch = micro_batch
        seeds.add(at.attention_seed(block))
        assert at.attention_seed(block) == at.attention_seed(block)
    assert len(seeds) == 2**5
