"""Step records: made in one place, written to metrics.jsonl and TensorBoard by rank 0."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from partrain.engine.guard import StepResult
from partrain.engine.peak_memory import PeakMemory, Peaks
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

STAGE_SCALARS = {
    "most_bytes": "memory of stage {stage}/fullest_rank_bytes",
    "least_bytes": "memory of stage {stage}/emptiest_rank_bytes",
    "predicted_bytes": "memory of stage {stage}/predicted_bytes",
}
"""The same, of each stage."""

EVALUATION_SCALARS = {
    "validation_loss": "loss/validation",
    "perplexity": "perplexity/validation",
    "evaluation_s": "speed/evaluation_s",
}
"""The same, of an evaluation."""


class Recorder:
    """Writes each step's record as it ends, on rank 0 alone."""

    def __init__(
        self, plan: Plan, folder: RunFolder, rank: int, memory: PeakMemory, *, done: int = 0
    ) -> None:
        """`done`: steps that are not done again; later records are of a time that is no more."""
        self.plan, self.memory = plan, memory
        self._peaks: Peaks | None = None
        self._file = self._board = None
        if rank:
            return
        cut_after(done, folder.metrics, folder.redone)
        self._file = open(folder.metrics, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed in close)
        self._board = SummaryWriter(str(folder.events), purge_step=done + 1, flush_secs=10)
        self._board.add_text("job", _code(folder.job.read_text(encoding="utf-8", errors="replace")), 0)
        self._board.add_text("plan", _code(plan.without_secrets().to_json()), 0)

    def record(self, step: int, result: StepResult, *, lr: float, step_s: float, peaks: Peaks) -> None:
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
            peak_bytes=peaks.largest,
            time=time.time(),
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            warning=result.warning,
        )
        stages = self._stages(peaks)
        line = record if peaks == self._peaks else replace(record, **stages)
        self._peaks = peaks
        self._file.write(line.to_json() + "\n")
        if is_shown(step, log_every=self.plan.log_every, steps=self.plan.training.steps):
            self._draw(record)
            self._draw_stages(step, stages)

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

    def _stages(self, peaks: Peaks) -> dict[str, Any]:
        """What was measured of each stage beside what the plan says, where that can be compared."""
        if not peaks.most:
            return {}
        predicted = tuple(stage.memory.peak_bytes for stage in self.plan.stages if stage.memory)
        return {"most_bytes": peaks.most, "least_bytes": peaks.least, "predicted_bytes": predicted}

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

    def _draw_stages(self, step: int, stages: Mapping[str, Sequence[int]]) -> None:
        for field, values in stages.items():
            for stage, value in enumerate(values):
                name = STAGE_SCALARS[field].format(stage=stage)
                self._board.add_scalar(name, value, step)  # type: ignore[union-attr]

    def close(self) -> None:
        """All that was recorded is on disk."""
        if self._file is not None and self._board is not None:
            self._file.close()
            self._board.close()


def _code(text: str) -> str:
    """Markdown that shows `text` as it is."""
    return "".join(f"    {line}\n" for line in text.splitlines())
