"""Kernels and compiling change the speed of a step, not what it computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partrain.engine.attention import AttentionCore, window_mask
from partrain.engine.dropout import Samples
from partrain.engine.execution import Execution
from partrain.engine.groups import ALONE
from partrain.engine.initial import materialise
from partrain.engine.pipeline import decoder_parts, loss_of
from partrain.engine.tensor_parallel import Region
from partrain.plan.plan import Plan
from tests.engine.plans import SEQUENCE, Case, plan_of

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def heads(number: int) -> Tensor:
    return torch.randn(2, number, SEQUENCE, 8, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_kernels_agree(kernel: str, window: int | None) -> None:
    mask = window_mask(SEQUENCE, window, CPU) if window else None
    inputs = (heads(8), heads(4), heads(2).repeat_interleave(2, 1), mask, None)
    torch.testing.assert_close(AttentionCore(kernel)(*inputs), AttentionCore()(*inputs))  # type: ignore[arg-type]


def test_attention_drops_its_part_and_the_same_for_the_same_seed() -> None:
    q, k = heads(8), heads(4)
    v = torch.eye(SEQUENCE)[None, None].expand(2, 4, -1, -1).contiguous()  # the output is the probabilities
    core = AttentionCore(dropout=0.25)
    whole, once, again, other = (core(q, k, v, None, seed) for seed in (None, 5, 5, 6))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    seen = whole > 0
    # 2 x 8 x 136 draws: a deviation of sqrt(0.25 x 0.75 / 2176) = 0.0093
    assert abs((once[seen] == 0).float().mean().item() - 0.25) < 0.05
    torch.testing.assert_close(once[once > 0], whole[once > 0] / 0.75)


def steps_of(plan: Plan, execution: Execution) -> list[tuple[float, float]]:
    """Loss and gradient norm of each of three batches."""
    samples = execution.samples
    assert samples is not None
    parts = decoder_parts(plan.model, samples.region, plan.layout.recompute, execution)
    module = nn.Sequential(*(part.build() for part in parts))
    materialise(module, ALONE, seed=3, device=CPU, dtype=torch.float32)
    samples.follow(module)
    loss_fn, found = loss_of(plan, ALONE), []
    tokens = torch.randint(61, (24, SEQUENCE + 1), generator=torch.Generator().manual_seed(1))
    for step in (1, 2, 3):
        samples.begin(step)
        module.zero_grad()
        loss = loss_fn(module(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        norms = torch.stack([parameter.grad.norm() for parameter in module.parameters()])
        found.append((loss.item(), norms.norm().item()))
    return found


def execution_of(plan: Plan, *, compiled: bool) -> Execution:
    return Execution(compile=compiled, samples=Samples(plan.training, plan.layout, 0, Region(ALONE)))


def test_recomputed_attention_drops_what_it_dropped() -> None:
    plans = [plan_of(Case(attention_dropout=0.2, recompute=kind)) for kind in ("none", "selective", "full")]
    kept, *recomputed = [steps_of(plan, execution_of(plan, compiled=False)) for plan in plans]
    assert recomputed == [kept, kept]
    without = plan_of(Case())
    assert steps_of(without, execution_of(without, compiled=False)) != kept


@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_compiled_blocks_share_one_program_and_compute_the_same() -> None:
    from torch._dynamo.utils import counters

    plan = plan_of(Case(recompute="selective", shape="qwen3", dropout=0.1))
    expected = steps_of(plan, execution_of(plan, compiled=False))
    counters.clear()
    found = steps_of(plan, execution_of(plan, compiled=True))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
