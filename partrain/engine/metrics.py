"""Step records: made in one place, written to metrics.jsonl and TensorBoard by rank 0."""

from __future__ import annotations

import resource
import sys
import time
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

from partrain.engine.guard import StepResult
from partrain.plan.batch_ramp import phase_at
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.run.metrics import cut_after
from partrain.run.records import EvaluationRecord, StepRecord, is_shown, perplexity

SCALARS = {
    "loss": "loss/train",
    "lr": "optimizer/learning_rate",
    "grad_norm": "optimizer/gradient_norm",
    "loss_scale": "optimizer/loss_scale",
    "skipped": "optimizer/skipped",
    "tokens_per_s": "speed/tokens_per_s",
    "step_s": "speed/step_s",
    "tflops": "speed/tflops_per_device",
    "mfu": "speed/mfu",
    "peak_bytes": "memory/peak_bytes",
}
"""Record field -> TensorBoard name."""

EVALUATION_SCALARS = {
    "validation_loss": "loss/validation",
    "perplexity": "perplexity/validation",
    "evaluation_s": "speed/evaluation_s",
}
"""The same, of an evaluation."""


def peak_memory(device: torch.device) -> int:
    """Largest memory of any rank so far, in bytes. Collective over the world."""
    if device.type == "cuda":
        here = torch.cuda.max_memory_allocated(device)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    largest = torch.tensor(float(here), dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


class Recorder:
    """Writes each step's record as it ends; on ranks other than 0 it does nothing."""

    def __init__(self, plan: Plan, folder: RunFolder, rank: int, *, done: int = 0) -> None:
        """`done`: steps that are not done again; later records are of a time that is no more."""
        self.plan = plan
        self._file = self._board = None
        if rank:
            return
        cut_after(done, folder.metrics, folder.redone)
        self._file = open(folder.metrics, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed in close)
        self._board = SummaryWriter(str(folder.events), purge_step=done + 1, flush_secs=10)
        self._board.add_text("job", _code(folder.job.read_text(encoding="utf-8", errors="replace")), 0)
        self._board.add_text("plan", _code(plan.without_secrets().to_json()), 0)

    def record(self, step: int, result: StepResult, *, lr: float, step_s: float, peak_bytes: int) -> None:
        """`step` has ended."""
        if self._file is None:
            return
        layout = self.plan.layout
        length = self.plan.training.sequence_length
        phase = phase_at(step, self.plan.training, layout)
        tokens = phase.batch * length
        flops = self.plan.flops_per_token * tokens / step_s / layout.world_size
        record = StepRecord(
            step=step,
            loss=result.loss,
            lr=lr,
            grad_norm=result.grad_norm,
            step_s=step_s,
            tokens=phase.sequences_after(step) * length,
            tokens_per_s=tokens / step_s,
            flops=flops,
            mfu=self._mfu(flops),
            peak_bytes=peak_bytes,
            time=time.time(),
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            warning=result.warning,
        )
        self._file.write(record.to_json() + "\n")
        if is_shown(step, log_every=self.plan.log_every, steps=self.plan.training.steps):
            self._draw(record)

    def record_evaluation(self, step: int, *, loss: float, evaluation_s: float) -> None:
        """The validation set was evaluated after `step`."""
        wish = self.plan.evaluation
        if self._file is None or self._board is None or wish is None:
            return
        record = EvaluationRecord(
            step=step,
            validation_loss=loss,
            perplexity=perplexity(loss),
            num_sequences=wish.num_sequences,
            evaluation_s=evaluation_s,
            time=time.time(),
        )
        self._file.write(record.to_json() + "\n")
        for field, name in EVALUATION_SCALARS.items():
            self._board.add_scalar(name, getattr(record, field), step)

    def _mfu(self, flops: float) -> float | None:
        machine = self.plan.machine
        peak = machine.bf16_flops if self.plan.training.precision != "fp32" else machine.fp32_flops
        return flops / peak if peak else None

    def _draw(self, record: StepRecord) -> None:
        values: dict[str, Any] = {**vars(record), "tflops": record.flops / 1e12}
        if record.loss_scale is None:
            values["skipped"] = None
        for field, name in SCALARS.items():
            if values[field] is not None and isfinite(values[field]):
                self._board.add_scalar(name, values[field], record.step)  # type: ignore[union-attr]

    def close(self) -> None:
        """All that was recorded is on disk."""
        if self._file is not None and self._board is not None:
            self._file.close()
            self._board.close()


def _code(text: str) -> str:
    """Markdown that shows `text` as it is."""
    return "".join(f"    {line}\n" for line in text.splitlines())
