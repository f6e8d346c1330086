"""Peak memory and seconds of the loss in slices over those of torch's own on all logits: a CPU process.

`python bench/chunked_loss.py [--tokens N] [--hidden N] [--chunk N] [--pairs N] [--threads N]`, at a
vocabulary of 128,000. Forward and backward of head and loss; the two take turns, so that whatever else the
machine does meets both. Memory is the most that torch's CPU allocator gave out at once during one of them,
gradients included, inputs not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from partrain.engine.groups import ALONE
from partrain.engine.loss import Loss
from partrain.model.weights import ZEROS, Weight

VOCABULARY = 128_000

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def torchs(x_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """All logits, and torch's cross-entropy of them."""
    return F.cross_entropy(F.linear(x_BTH, weight_VH).flatten(0, 1), labels_BT.flatten())


def loss_in_slices(size: int | None) -> Step:
    """What the engine does."""
    loss = Loss(Weight("head.weight", 1, (VOCABULARY, 1), ZEROS, split=0), ALONE, chunk_size=size)
    return lambda x_BTH, weight_VH, labels_BT: loss((x_BTH, weight_VH), labels_BT)


def seconds(step: Step, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[float, float]:
    """Seconds of forward and backward, and the loss; no gradient is left behind."""
    start = time.perf_counter()
    loss = step(*inputs)
    loss.backward()
    taken = time.perf_counter() - start
    for tensor in inputs:
        tensor.grad = None
    return taken, loss.item()


def peak_bytes(step: Step, inputs: tuple[Tensor, Tensor, Tensor]) -> int:
    """The most memory that was allocated at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        seconds(step, inputs)
    events = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(sizes)))


def main() -> None:
    """Print both ratios for the loss in slices and, beside it, for the engine's loss in one piece."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"tokens": 2048, "hidden": 512, "chunk": 256, "pairs": 5, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    wish = parser.parse_args()
    torch.set_num_threads(wish.threads)
    x = torch.randn(1, wish.tokens, wish.hidden, requires_grad=True)
    weight = torch.randn(VOCABULARY, wish.hidden).mul_(wish.hidden**-0.5).requires_grad_()
    inputs = (x, weight, torch.randint(VOCABULARY, (1, wish.tokens)))
    print(f"{wish.tokens} tokens, hidden size {wish.hidden}, vocabulary {VOCABULARY}, fp32")
    compare(f"slices of {wish.chunk}", loss_in_slices(wish.chunk), inputs, num_pairs=wish.pairs)
    compare("one piece", loss_in_slices(None), inputs, num_pairs=wish.pairs)


def compare(name: str, step: Step, inputs: tuple[Tensor, Tensor, Tensor], *, num_pairs: int) -> None:
    """Print both ratios to torch's own."""
    memory, most = peak_bytes(step, inputs), peak_bytes(torchs, inputs)
    ratios = []
    for _ in range(num_pairs):
        (ours, loss), (theirs, expected) = seconds(step, inputs), seconds(torchs, inputs)
        assert abs(loss - expected) < 1e-4, (loss, expected)
        ratios.append(ours / theirs)
    print(f"{name}: {memory / 2**20:.0f} MiB of {most / 2**20:.0f} MiB, ratio {memory / most:.3f}", end="; ")
    middle = statistics.median(ratios)
    print(f"time ratio over {num_pairs} pairs: median {middle:.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
