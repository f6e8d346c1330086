"""What each saver does to a step on one GPU: tokens/s, TFLOP/s, MFU and peak memory, beside a plain loop.

`python bench/gpu_step.py [--budget S] [--sizes NAME ...] [--savers NAME ...] [--json FILE] [--tiny]`.
Models of the width of 125M (whole), 1B and 8B parameters, with as many layers as are soon built, from random
weights on random tokens, all in this one process. No row is started that the budget has no time for; those
left are named. `--tiny` runs the same code on any machine, with toy sizes. The plain loop has the same
layers, batch and optimizer: fp32 weights under autocast, all logits at once, nothing of the engine.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ |= {"MASTER_PORT": os.environ.get("MASTER_PORT", "29534")}

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partrain.data.sources import open_source
from partrain.engine.build import build_engine, join_world
from partrain.engine.dropout import Samples
from partrain.engine.execution import Execution, choose_arithmetic
from partrain.engine.groups import ALONE
from partrain.engine.initial import materialise
from partrain.engine.optimizer import parameter_groups
from partrain.engine.pipeline import decoder_parts
from partrain.engine.tensor_parallel import Region
from partrain.engine.train import batches, train_step
from partrain.errors import FaultsError
from partrain.launch.machine import find_machine
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.facts import DatasetFacts
from partrain.spec.load import read_job_text

MACHINE = find_machine(os.environ)
DEVICE = torch.device(MACHINE.device, 0) if MACHINE.device == "cuda" else torch.device("cpu")
WARM_UP, MOST_S = 2, 4.0
"""Steps that are not timed; seconds of timed ones after which no other is."""


class Size(NamedTuple):
    """What is trained."""

    model: str
    sequence_length: int
    micro_batch_size: int


SIZES = {
    "125m": Size("{preset: gpt2}", 1024, 16),
    "1b": Size("{preset: llama-3.2-1b, num_layers: 8}", 4096, 4),
    "8b": Size("{preset: llama-3.1-8b, num_layers: 3, vocab_size: 32768}", 4096, 2),
}
TOY = "num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 512"
TINY = {
    "125m": Size(f"{{preset: gpt2, {TOY}}}", 64, 2),
    "1b": Size(f"{{preset: llama-3.2-1b, {TOY}, num_kv_heads: 2, head_size: 16, mlp_size: 96}}", 64, 2),
    "8b": Size(f"{{preset: llama-3.1-8b, {TOY}, num_kv_heads: 2, mlp_size: 128}}", 64, 2),
}


class Saver(NamedTuple):
    """What a row changes of the job, and the sizes that are worth their time."""

    changes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = tuple(SIZES)


PLAIN = "plain loop"
SAVERS = {
    "as planned": Saver(),
    PLAIN: Saver(),
    "not compiled": Saver(("training.compile=false",)),
    "plain loop, not compiled": Saver(("training.compile=false",)),
    "math": Saver(("training.attention=math",)),
    "recompute full": Saver(("training.recompute=full",), ("1b", "8b")),
    "recompute selective": Saver(("training.recompute=selective",), ("1b", "8b")),
    "loss in one piece": Saver(("training.loss_chunk_size=none",), ("1b",)),
    "loss in slices": Saver(("training.loss_chunk_size={chunk}",), ("1b",)),
    "fp32, zero 1": Saver(("training.precision=fp32", "parallel.zero=1"), ("125m",)),
    "fp32, zero 0": Saver(("training.precision=fp32", "parallel.zero=0"), ("125m",)),
    "fp32, tf32": Saver(("training.precision=fp32", "training.tf32=true"), ("125m",)),
    "plain loop, fp32": Saver(("training.precision=fp32",), ("125m",)),
    "dropout": Saver(("model.dropout=0.1",), ("125m",)),
    "dropout, not compiled": Saver(("model.dropout=0.1", "training.compile=false"), ("125m",)),
    "zero 2": Saver(("parallel.zero=2",), ("8b",)),
    "zero 3": Saver(("parallel.zero=3",), ("8b",)),
    "flash": Saver(("training.attention=flash",), ("125m", "8b")),
    "efficient": Saver(("training.attention=efficient",), ("125m", "8b")),
    "compiled": Saver(("training.compile=true",), ("125m",)),
}
"""The first rows are the ones most worth their time."""


@dataclass(frozen=True)
class Row:
    """What was measured, or why it was not."""

    size: str
    saver: str
    compiled: bool | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    flops: float | None = None
    """Model FLOP/s, recomputation not counted."""
    mfu: float | None = None
    peak_bytes: int | None = None
    """Most memory that was allocated at once; None on a CPU."""
    loss: float | None = None
    """Of the last step: rows of one size and precision should agree."""
    failed: str = ""


def plan_of(size: Size, overrides: tuple[str, ...]) -> Plan:
    """The plan of a row, raising FaultsError where it is not legal on this machine."""
    chunk = size.micro_batch_size * size.sequence_length // 4
    job = f"""
version: 1
name: step
model: {size.model}
data: {{train: synthetic}}
training: {{sequence_length: {size.sequence_length}, global_batch_size: {size.micro_batch_size},
  micro_batch_size: {size.micro_batch_size}, steps: 1000, precision: bf16, prefetch: 0}}
"""
    changes = [change.format(chunk=chunk) for change in overrides]
    reading = read_job_text(job.encode(), source="bench", overrides=changes, environ={})
    data = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    return decide(reading, machine=MACHINE, data=data)


Step = Callable[[int], float]
"""Number of a step -> its loss."""


@contextmanager
def engine_step(plan: Plan) -> Iterator[Step]:
    """The engine's step, as a run takes it."""
    linear = F.linear
    with redirect_stdout(io.StringIO()):  # what DeepSpeed says of itself
        engine = build_engine(plan, rank=0, device=DEVICE)
    read = reader(plan)

    def step(number: int) -> float:
        engine.samples.begin(number)
        return train_step(engine, read(number), lr=3e-4).loss

    try:
        yield step
    finally:
        engine.destroy()
        F.linear = linear  # an engine of ZeRO 3 replaces it for the whole process


@contextmanager
def plain_step(plan: Plan) -> Iterator[Step]:
    """The same layers in a row under autocast, and nothing else."""
    region, wish, training = Region(ALONE), plan.training.optimizer, plan.training
    samples = Samples(training, plan.layout, 0, region)
    execution = Execution(training.attention, training.compile, samples)
    choose_arithmetic(tf32=training.tf32)
    parts = decoder_parts(plan.model, region, plan.layout.recompute, execution)
    parts = [part for part in parts if part.forward is None]
    layers = nn.Sequential(*(part.build() for part in parts))
    materialise(layers, ALONE, seed=training.seed, device=DEVICE, dtype=torch.float32)
    head = layers[0] if plan.model.tie_embeddings else None
    groups = parameter_groups(layers.parameters(), wish.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=wish.betas, eps=wish.eps, fused=True)
    autocast: Any = nullcontext
    if training.precision == "bf16":
        autocast = lambda: torch.autocast(DEVICE.type, torch.bfloat16)  # noqa: E731 (one of two contexts)
    read = reader(plan)

    def step(number: int) -> float:
        tokens, labels = next(read(number))
        with autocast():
            hidden, weight = layers(tokens) if head is None else (layers(tokens), head.weight)
            logits = F.linear(hidden, weight)[..., : plan.model.vocab_size]
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(layers.parameters(), wish.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    yield step


def reader(plan: Plan) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """The micro-batches of a step."""
    wish, model = plan.training, plan.model
    source = open_source(
        plan.data, sequence_length=wish.sequence_length, vocab_size=model.vocab_size, seed=wish.seed
    )
    return lambda number: batches(source, plan, step=number, replica=0, device=DEVICE)


def measured(size: str, saver: str, plan: Plan, *, num_steps: int) -> Row:
    """One row; what CUDA has no memory for is a row too."""
    start = plain_step if saver.startswith(PLAIN) else engine_step
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats(DEVICE)
    try:
        with start(plan) as step:
            seconds, loss = timed(step, num_steps)
    except torch.OutOfMemoryError:
        return Row(size, saver, plan.training.compile, failed="out of memory")
    tokens = plan.layout.global_batch_size * plan.training.sequence_length
    flops = plan.flops_per_token * tokens / seconds
    peak = MACHINE.bf16_flops if plan.training.precision == "bf16" else MACHINE.fp32_flops
    return Row(
        size=size,
        saver=saver,
        compiled=plan.training.compile,
        step_s=seconds,
        tokens_per_s=tokens / seconds,
        flops=flops,
        mfu=flops / peak if peak else None,
        peak_bytes=torch.cuda.max_memory_allocated(DEVICE) if DEVICE.type == "cuda" else None,
        loss=loss,
    )


def timed(step: Step, most: int) -> tuple[float, float]:
    """Median seconds of up to `most` steps, and the last loss. A step reads its loss, so it has ended."""
    for number in range(1, WARM_UP + 1):
        loss = step(number)
    taken: list[float] = []
    while len(taken) < most and sum(taken) < MOST_S:
        begin = time.perf_counter()
        loss = step(WARM_UP + len(taken) + 1)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2], loss


def line(row: Row) -> str:
    """A row of the table."""
    name = f"{row.size:5} {row.saver:25}"
    if row.step_s is None or row.tokens_per_s is None or row.flops is None:
        return f"{name} {row.failed}"
    mfu = "    -" if row.mfu is None else f"{row.mfu:5.1%}"
    peak = "     -" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:6.2f}"
    speed = f"{row.step_s * 1e3:9.1f} {row.tokens_per_s:10.0f} {row.flops / 1e12:8.3f} {mfu} {peak}"
    return f"{name} {'yes' if row.compiled else 'no':8} {speed} {row.loss:8.4f}"


def rows(sizes: list[str], savers: list[str], *, budget_s: float, tiny: bool) -> Iterator[Row]:
    """Each row as it is measured: its sizes with the first saver, then with the next; no `sizes`: each
    saver's own."""
    known = TINY if tiny else SIZES
    begin, longest = time.monotonic(), 0.0
    for saver in savers:
        for name in sizes or SAVERS[saver].sizes:
            started = time.monotonic()
            if started - begin + longest > budget_s:
                yield Row(name, saver, failed="left out: no time")
                continue
            try:
                plan = plan_of(known[name], SAVERS[saver].changes)
            except FaultsError as error:
                yield Row(name, saver, failed=f"not here: {error.faults[0].message}")
                continue
            yield measured(name, saver, plan, num_steps=2 if tiny else 10)
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()
            longest = max(longest, time.monotonic() - started)


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, help="seconds; 330, or 50 with --tiny")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[], help="each saver's own")
    parser.add_argument("--savers", nargs="+", choices=SAVERS, default=list(SAVERS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    wish = parser.parse_args()
    target = wish.json and wish.json.resolve()
    if wish.tiny:
        torch.set_num_threads(1)
    torch._dynamo.reset()
    gc.freeze()  # DeepSpeed collects garbage 25 times an engine, which would go over all modules each time
    budget_s = wish.budget if wish.budget is not None else 50.0 if wish.tiny else 330.0
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    join_world(MACHINE.device)
    print(f"torch {torch.__version__} on {MACHINE.name}, bf16 where no other is named")
    print("size  saver                     compiled   step ms   tokens/s  TFLOP/s   MFU   GiB     loss")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for row in rows(wish.sizes, wish.savers, budget_s=budget_s, tiny=wish.tiny):
            print(line(row), flush=True)
            found.append(row)
        os.chdir("/")
    if target:
        document = {
            "machine": asdict(MACHINE),
            "torch": torch.__version__,
            "rows": [asdict(r) for r in found],
        }
        target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
