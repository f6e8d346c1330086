"""The factor of the loss under fp16, and what became of a step's gradients."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler


class _AfterStep(DynamicLossScaler):
    """DeepSpeed's dynamic scale, changed after a step and not in its midst.

    There the gradients would be divided by the new scale, and be half of themselves whenever it doubles
    (0.19.8, `stage_1_and_2.py : step`; deepspeedai/DeepSpeed pull request 8588).
    """

    overflow = False

    def update_scale(self, overflow: bool) -> None:
        self.overflow = overflow

    def settle(self) -> None:
        """Change the scale by what the step came to."""
        super().update_scale(self.overflow)


def change_scale_after_steps(engine: Any) -> None:
    """Let `settle_scale` decide when the engine's loss scale changes."""
    if engine.fp16_enabled() and engine.optimizer.loss_scaler.dynamic:
        # At its least DeepSpeed's would raise an error that names no step; that step is the guard's to name.
        args = {**engine.dynamic_loss_scale_args(), "raise_error_at_min_scale": False}
        engine.optimizer.loss_scaler = _AfterStep(**args)


def settle_scale(engine: Any) -> None:
    """A step is over: its loss scale may change."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if isinstance(scaler, _AfterStep):
        scaler.settle()


def loss_scale(engine: Any) -> float | None:
    """Factor with which the next step's gradients are made; None where none are scaled."""
    return float(engine.optimizer.loss_scale) if engine.fp16_enabled() else None


def is_searching(engine: Any) -> bool:
    """Whether the scale can still fall: then a skipped step is how it finds out that it is too high."""
    if not engine.fp16_enabled():
        return False
    scaler = engine.optimizer.loss_scaler
    return bool(scaler.dynamic and scaler.cur_scale > scaler.min_scale)
