"""Modules and first values against the weight table."""

import math

import pytest
import torch

from partrain.engine.groups import ALONE, TensorGroup
from partrain.engine.initial import BLOCK, initial_values
from partrain.engine.modules import rotary_table
from partrain.engine.pipeline import decoder_parts
from partrain.engine.tensor_parallel import Region
from partrain.model.shape import rank_parameters
from partrain.model.weights import ZEROS, Initial, Weight
from partrain.spec.catalog import model_names
from tests.engine.plans import Case, plan_of
from tests.model.test_decoder import model_of

pytestmark = pytest.mark.torch

WIDE = Weight("layers.0.mlp.up.weight", 1, (2 * BLOCK + 4, 3 * BLOCK // 2), Initial("normal", 0.5), split=0)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", model_names())
def test_the_table_counts_what_the_modules_hold(name: str, tp: int) -> None:
    model = model_of(preset=name)
    region = Region(TensorGroup(rank=0, size=tp))
    parts = [part for part in decoder_parts(model, region, "none") if part.forward is None]
    held = sum(parameter.numel() for part in parts for parameter in part.build().parameters())
    assert held == rank_parameters(model, tp=tp, first=0, last=model.num_layers + 1)


def test_modules_are_built_without_memory() -> None:
    block = decoder_parts(model_of(preset="llama-3.1-405b"), Region(ALONE), "none")[1].build()
    assert all(parameter.is_meta for parameter in block.parameters())


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("tp", [2, 3, 6])
def test_shards_are_slices_of_the_whole(split: int, tp: int) -> None:
    weight = Weight(WIDE.name, 1, WIDE.shape, WIDE.initial, split=split)
    whole = initial_values(weight, ALONE, seed=7, dtype=torch.float32)
    shards = [
        initial_values(weight, TensorGroup(rank, tp), seed=7, dtype=torch.float32) for rank in range(tp)
    ]
    assert torch.equal(torch.cat(shards, split), whole)


def test_first_values_are_normal_and_differ_by_name_seed_and_block() -> None:
    whole = initial_values(WIDE, ALONE, seed=7, dtype=torch.float32)
    # three million draws: the mean's and the deviation's own errors are below 0.5 / sqrt(3e6) = 3e-4
    assert abs(whole.mean().item()) < 2e-3
    assert abs(whole.std().item() - 0.5) < 2e-3
    other = Weight("other", 1, WIDE.shape, WIDE.initial)
    for again in (
        initial_values(WIDE, ALONE, seed=8, dtype=torch.float32),
        initial_values(other, ALONE, seed=7, dtype=torch.float32),
        whole.roll(BLOCK, 0),
    ):
        assert not torch.isclose(whole, again).float().mean() > 0.01


def test_padding_is_zero() -> None:
    weight = Weight("embedding.weight", 0, (61, 4), Initial("normal", 1.0), split=0, padded=True)
    last = initial_values(weight, TensorGroup(2, 3), seed=1, dtype=torch.float32)
    assert last.shape == (24, 4)
    assert last[:13].abs().min() > 0
    assert not last[13:].any()
    assert not initial_values(Weight("b", 0, (3,), ZEROS), ALONE, seed=1, dtype=torch.float32).any()


def test_rotary_scaling_divides_low_frequencies_and_keeps_high_ones() -> None:
    # Llama 3.1: wavelengths above 8192 / 1 positions are stretched 8 times, below 8192 / 4 not at all
    model = model_of(preset="llama-3.1-8b")
    cos, sin = rotary_table(model, 2, torch.device("cpu"), torch.float32)
    plain = torch.tensor([model.rope_theta ** (-2 * i / model.head_size) for i in range(64)])
    wavelength = 2 * math.pi / plain
    angle = torch.atan2(sin[1, :64], cos[1, :64])
    high, low = wavelength < 2048, wavelength > 8192
    torch.testing.assert_close(angle[high], plain[high])
    torch.testing.assert_close(angle[low], plain[low] / 8)
    assert (int(high.sum()), int(low.sum())) == (29, 29)
    between = ~(high | low)
    assert (angle[between] < plain[between]).all()
    assert (angle[between] > plain[between] / 8).all()


def test_a_plan_survives_json() -> None:
    from partrain.plan.plan import Plan

    plan = plan_of(Case(dp=2, pp=2, tp=2, sequence_parallel=True))
    assert Plan.from_json(plan.to_json()) == plan
