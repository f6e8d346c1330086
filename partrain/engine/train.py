"""One optimizer step, and the loop over them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from math import isfinite
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine

from partrain.data.sources import Sources, TokenSource
from partrain.data.tokens import batch
from partrain.engine.checkpoints import Checkpoints
from partrain.engine.evaluation import evaluation_of
from partrain.engine.guard import Guard, StepResult
from partrain.engine.loss_scale import is_searching, loss_scale, settle_scale
from partrain.engine.metrics import Recorder
from partrain.engine.optimizer import Clipping, forget_gradients
from partrain.engine.prefetch import Batch, Reader
from partrain.engine.row import mean_loss
from partrain.layout.ranks import coordinate_of
from partrain.plan.batch_ramp import layout_in, phase_at
from partrain.plan.learning_rate import learning_rate
from partrain.plan.plan import Plan


def batches(
    source: TokenSource, plan: Plan, *, step: int, replica: int, device: torch.device
) -> Iterator[Batch]:
    """Inputs and labels [B, T] of each micro-batch of `replica`: a pure function of the step.

    First and last stage and every tensor rank read them on their own; nothing is sent.
    """
    phase = phase_at(step, plan.training, plan.layout)
    layout, place = layout_in(phase, plan.layout), step - phase.first_step + 1
    for number in range(layout.num_micro_batches):
        rows = batch(
            source, layout, step=place, replica=replica, micro_batch=number, first=phase.first_sequence
        )
        tokens = torch.from_numpy(rows)
        if device.type == "cuda":  # from pinned memory the copy waits for nothing and nobody for it
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def set_batch_size(engine: Any, size: int) -> None:
    """Let the next step have `size` sequences, in micro-batches as large as before."""
    if engine.train_batch_size() != size:
        engine.set_train_batch_size(size)
        # Without a pipeline a step ends where this is a multiple of the micro-batches of a step.
        engine.micro_steps = 0


def train_step(engine: Any, micro_batches: Iterator[Batch], *, lr: float) -> StepResult:
    """One optimizer step; its update is left out where the gradient's norm is not finite."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for group in optimizer.param_groups:
        group["lr"] = lr
    scale, pipelined = loss_scale(engine), isinstance(engine, PipelineEngine)
    loss = float(engine.train_batch(micro_batches)) if pipelined else mean_loss(engine, micro_batches)
    settle_scale(engine)
    clipping: Clipping | None = getattr(optimizer, "clipping", None)
    norm = clipping.grad_norm if clipping else engine.get_global_grad_norm()
    if not isfinite(norm):
        forget_gradients(engine.optimizer)
    searching = isfinite(loss) and not isfinite(norm) and is_searching(engine)
    return StepResult(loss, float(norm), loss_scale=scale, skipped=searching)


def train(
    engine: Any, plan: Plan, sources: Sources, *, rank: int, recorder: Recorder, checkpoints: Checkpoints
) -> Iterator[int]:
    """The steps of the plan that are left, yielding each as it begins; all and every evaluation are recorded.

    Raises GuardError, on every rank in the same step, when the training goes wrong. A step that is left out
    counts as one: learning rate and data are those of the step, whatever became of the steps before.
    """
    replica, wish, device = coordinate_of(rank, plan.layout).dp, plan.training, engine.device
    evaluation = evaluation_of(plan, sources, rank=rank, device=device)
    steps = range(checkpoints.done + 1, wish.steps + 1)
    read = partial(batches, sources.train, plan, replica=replica, device=device)
    reader = Reader(lambda step: read(step=step), steps, ahead=wish.prefetch, device=device)
    guard, last = Guard(engine, plan, rank), time.monotonic()
    for step in steps:
        yield step
        lr = learning_rate(step, steps=wish.steps, optimizer=wish.optimizer, schedule=wish.schedule)
        set_batch_size(engine, phase_at(step, wish, plan.layout).batch)

        def run(step: int = step, lr: float = lr) -> StepResult:
            engine.samples.begin(step)
            recorder.memory.begin()
            return train_step(engine, reader.batches(step), lr=lr)

        result = guard.watch(step, run)
        peaks = recorder.memory.peaks()
        now = time.monotonic()
        recorder.record(step, result, lr=lr, step_s=now - last, peaks=peaks)
        if evaluation is not None and evaluation.wish.is_due(step, steps=wish.steps):
            loss, seconds = evaluation.measure(engine)
            recorder.record_evaluation(step, loss=loss, evaluation_s=seconds)
            now = time.monotonic()  # no step's time contains it
        last = now
        if checkpoints.after(step):
            return
