"""Seconds a step of the engine over those of a plain PyTorch loop: one process, same model, same batch.

`python bench/overhead.py [--pairs N] [--threads N]`. The two take turns, step by step, in one process, so
that whatever else the machine does meets both; each pair gives one ratio. The plain loop has torch's
fused AdamW, the same layers, clipping, batch and threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_PORT": os.environ.get("MASTER_PORT", "29533")}

import torch
from torch import Tensor, nn

from partrain.data.sources import open_source
from partrain.engine.build import build_engine, join_world
from partrain.engine.groups import ALONE
from partrain.engine.initial import materialise
from partrain.engine.optimizer import parameter_groups
from partrain.engine.pipeline import decoder_parts
from partrain.engine.tensor_parallel import Region
from partrain.engine.train import batches, train_step
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.load import read_job_text

CPU = torch.device("cpu")
JOB = b"""
version: 1
name: overhead
model: {family: llama, num_layers: 4, hidden_size: 256, num_heads: 4, vocab_size: 256, max_positions: 256}
data: {train: synthetic}
training: {sequence_length: 128, global_batch_size: 8, micro_batch_size: 8, steps: 1000, precision: fp32}
"""


def plan_of(job: bytes, zero: str) -> Plan:
    """The plan of a job on one CPU."""
    machine = MachineFacts(
        device="cpu",
        name="cpu",
        num_devices=1,
        memory_bytes=None,
        bf16_flops=None,
        fp32_flops=None,
        origin="bench",
    )
    data = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    return decide(
        read_job_text(job, source="bench", overrides=[f"parallel.zero={zero}"], environ={}),
        machine=machine,
        data=data,
    )


class PlainLoop:
    """The same layers in a row, and nothing else."""

    def __init__(self, plan: Plan) -> None:
        parts = decoder_parts(plan.model, Region(ALONE), plan.layout.recompute)
        self.layers = nn.Sequential(*(part.build() for part in parts))
        materialise(self.layers, ALONE, seed=plan.training.seed, device=CPU, dtype=torch.float32)
        wish = plan.training.optimizer
        groups = parameter_groups(self.layers.parameters(), wish.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=wish.lr, betas=wish.betas, eps=wish.eps, fused=True)
        self.clip = wish.grad_clip

    def step(self, tokens: Tensor, labels: Tensor) -> float:
        """One update; the loss."""
        logits = nn.functional.linear(*self.layers(tokens))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1)[:, :256], labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.layers.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def main() -> None:
    """Compare what `auto` takes, and ZeRO 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    wish = parser.parse_args()
    torch.set_num_threads(wish.threads)
    join_world("cpu")
    for zero in ("auto", "1"):
        compare(plan_of(JOB, zero), num_pairs=wish.pairs)


def compare(plan: Plan, *, num_pairs: int) -> None:
    """Print the median ratio of one plan's engine to the plain loop, and its spread."""
    engine, plain = build_engine(plan, rank=0, device=CPU), PlainLoop(plan)
    source = open_source(plan.data, sequence_length=128, vocab_size=256, seed=1)
    ratios, ours, theirs = [], [], []
    for step in range(1, num_pairs + 11):
        micro = list(batches(source, plan, step=step, replica=0, device=CPU))
        start = time.perf_counter()
        loss = train_step(engine, iter(micro), lr=3e-4).loss
        middle = time.perf_counter()
        plain_loss = plain.step(*micro[0])
        end = time.perf_counter()
        assert abs(loss - plain_loss) < 1e-3, (step, loss, plain_loss)
        if step > 10:
            ours.append(middle - start)
            theirs.append(end - middle)
            ratios.append(ours[-1] / theirs[-1])
    low, *_, high = statistics.quantiles(ratios, n=10)
    ours_ms, theirs_ms = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
    print(f"ZeRO {plan.layout.zero}: engine {ours_ms:.1f} ms, plain loop {theirs_ms:.1f} ms a step")
    middle = statistics.median(ratios)
    print(f"ratio over {len(ratios)} pairs: median {middle:.3f}, p10 {low:.3f}, p90 {high:.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
