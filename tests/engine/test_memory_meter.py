"""The meter of live tensors against torch's own allocator: its events over the same work."""

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from partrain.engine.groups import ALONE
from partrain.engine.loss import Loss
from partrain.engine.memory_meter import MemoryMeter
from partrain.engine.modules import weight_table
from tests.engine.allocator import allocator_bytes
from tests.engine.test_activations import LENGTH, SEQUENCES, model_of, parts_of

pytestmark = pytest.mark.torch

TOLERANCE = 0.005
"""What a kernel takes and gives back within one operation is the allocator's alone."""


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 64))


def forward_and_backward() -> None:
    model = mlp()
    for _ in range(2):
        model(torch.randn(512, 256)).square().mean().backward()


def views_and_changes_in_place() -> None:
    x = torch.zeros(1024, 512)
    rows = [row.view(16, 32) for row in x.unbind()]
    rows[0].add_(1)
    y = x.t()[:100].reshape(-1)  # a copy
    x.resize_(2048, 512)
    x.mul_(2).exp_()
    del x
    z = torch.cat([rows[3], rows[4]]).clone()
    z.data = torch.ones(900, 900)  # larger than what resizing held twice, within one operation
    del y


def recomputation() -> None:
    blocks = [mlp() for _ in range(4)]
    x = torch.randn(512, 256, requires_grad=True)
    y: Tensor = x
    for block in blocks:
        y = nn.functional.pad(checkpoint(block, y, use_reentrant=False), (0, 192))
    y.sum().backward()


def steps_of_adamw() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        model(torch.randn(64, 256)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def a_decoders_step() -> None:
    model = model_of("qwen3")
    loss = Loss(weight_table(model)["head.weight"], ALONE, 64)
    row = nn.Sequential(*parts_of(model, "fp32", "selective"))
    optimizer = torch.optim.AdamW(row.parameters(), fused=True)
    for _ in range(2):
        tokens = torch.randint(0, model.vocab_size, (SEQUENCES, LENGTH))
        loss(row(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


WORK: dict[str, Callable[[], None]] = {
    "forward and backward": forward_and_backward,
    "views and changes in place": views_and_changes_in_place,
    "recomputation": recomputation,
    "steps of AdamW": steps_of_adamw,
    "a decoder's step": a_decoders_step,
}


def metered(work: Callable[[], None]) -> int:
    gc.collect()
    with MemoryMeter() as meter:
        before = meter.live_bytes
        work()
        peak = meter.peak_bytes - before
        gc.collect()
        assert meter.live_bytes == before
    return peak


@pytest.mark.parametrize("name", WORK)
def test_the_peak_is_the_allocators(name: str) -> None:
    work = WORK[name]
    work()  # what is made once, at first use
    assert metered(work) == pytest.approx(allocator_bytes(work)[0], rel=TOLERANCE)


def test_what_was_there_before_counts() -> None:
    kept = torch.zeros(1000, 1000)
    with MemoryMeter() as meter:
        assert meter.live_bytes >= 4_000_000
        before = meter.live_bytes
        view = kept[0]
        assert meter.live_bytes == before
        del kept
        assert meter.live_bytes == before  # the view holds it
        del view
        assert meter.live_bytes == before - 4_000_000


def test_what_another_thread_made_counts_once_it_is_read() -> None:
    made: list[Tensor] = []
    with MemoryMeter() as meter:
        before = meter.live_bytes
        other = threading.Thread(target=lambda: made.append(torch.zeros(1000, 1000)))
        other.start()
        other.join()
        assert meter.live_bytes == before
        first = made[0][0]
        assert meter.live_bytes == before + 4_000_000
        del first
        made.clear()
        assert meter.live_bytes == before


def test_fake_tensors_count_where_asked_and_there_alone() -> None:
    symbolic = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(7, 5), static_shapes=False)
    with MemoryMeter() as meter:  # a compiler's leftover, with a size that is no number
        before = meter.live_bytes
        assert type(before) is int
        symbolic.sum()
        real = torch.zeros(1000, 1000)
        assert meter.live_bytes == before + 4_000_000
        with FakeTensorMode():
            torch.zeros(1000, 1000)
        assert meter.peak_bytes == before + 4_000_000
    del symbolic
    with FakeTensorMode(), MemoryMeter(fake=True) as meter:
        before = meter.live_bytes
        fake = torch.zeros(1000, 1000) + 1
        assert meter.peak_bytes == before + 8_000_000
        assert meter.live_bytes == before + 4_000_000
    del real, fake
