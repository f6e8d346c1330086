"""The loss on sequences that are not trained on: the same number under every layout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from partrain.data.sources import Sources, TokenSource
from partrain.data.tokens import rows
from partrain.engine.loss import HeadOutput, Loss
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import EvaluationPlan, Plan

NO_LABEL = -1
"""Stands where a micro-batch is filled up: its token has no part in the loss."""


@dataclass(frozen=True)
class Evaluation:
    """Measures the loss of a plan's validation set on one rank; `source` is the set's data."""

    plan: Plan
    wish: EvaluationPlan
    source: TokenSource
    rank: int
    device: torch.device

    @property
    def num_micro_batches(self) -> int:
        """Of each replica: the set is filled up to whole micro-batches of all replicas, at most."""
        layout = self.plan.layout
        return -(-self.wish.num_sequences // (layout.dp * layout.micro_batch_size))

    def micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels [B, T] of this rank's replica."""
        replica, size = coordinate_of(self.rank, self.plan.layout).dp, self.plan.layout.micro_batch_size
        num_sequences = self.wish.num_sequences
        for number in range(self.num_micro_batches):
            start = (replica * self.num_micro_batches + number) * size
            places = range(start, start + size)
            # what fills up is the first sequence, which is surely there
            indices = [self.wish.first + (place if place < num_sequences else 0) for place in places]
            tokens = torch.from_numpy(rows(self.source, indices)).to(self.device)
            labels = tokens[:, 1:].contiguous()
            labels[max(0, num_sequences - start) :] = NO_LABEL
            yield tokens[:, :-1].contiguous(), labels

    def measure(self, engine: Any) -> tuple[float, float]:
        """Mean cross-entropy over all tokens of the set, in nats, and the seconds it took. Collective.

        Neither label smoothing nor z-loss is in it, and nothing of a later step is changed by it.
        """
        start = time.monotonic()
        with _measuring(engine.module):
            if isinstance(engine, PipelineEngine):
                mean = engine.eval_batch(self.micro_batches(), num_micro_batches=self.num_micro_batches)
            else:
                mean = _mean_loss(engine, self.micro_batches())
        layout = self.plan.layout
        num_filled = layout.dp * self.num_micro_batches * layout.micro_batch_size
        return float(mean) * num_filled / self.wish.num_sequences, time.monotonic() - start


def evaluation_of(plan: Plan, sources: Sources, *, rank: int, device: torch.device) -> Evaluation | None:
    """The evaluation that `plan` wants; None: none."""
    if plan.evaluation is None or sources.validation is None:
        return None
    return Evaluation(plan, plan.evaluation, sources.validation, rank, device)


def mean_of_labelled(loss: Loss, output: HeadOutput, labels_BT: Tensor) -> Tensor:
    """The sum of the losses of tokens with a label over the number of all tokens, in fp64."""
    losses_N = loss.of_tokens(output, labels_BT.clamp(min=0))
    return losses_N.double().masked_fill(labels_BT.flatten() == NO_LABEL, 0.0).mean()


@contextmanager
def _measuring(module: Any) -> Iterator[None]:
    """`module` with the loss of an evaluation, out of training."""
    trained: Loss = module.loss_fn
    bare = replace(trained, label_smoothing=0.0, z_loss=0.0)
    module.loss_fn = lambda output, labels: mean_of_labelled(bare, output, labels)
    module.eval()
    try:
        yield
    finally:
        module.loss_fn = trained
        module.train()


@torch.no_grad()
def _mean_loss(engine: Any, micro_batches: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Over micro-batches and replicas, of an engine without a pipeline."""
    losses = [engine(tokens_BT, labels_BT) for tokens_BT, labels_BT in micro_batches]
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean, group=engine.mpu.get_data_parallel_group())
    return float(mean) / engine.mpu.get_data_parallel_world_size()
