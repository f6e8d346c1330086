"""How a rank's modules are run; nothing of it changes what a weight means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from partrain.engine.dropout import Samples
from partrain.spec.training import AttentionKernel


@dataclass(frozen=True)
class Execution:
    """What the plan says of it; alone: torch's choice, uncompiled, without dropout."""

    kernel: AttentionKernel = "torch"
    compile: bool = False
    samples: Samples | None = None
    """Where dropout learns what it drops; needed where a model has dropout."""


PLAIN = Execution()


def compiled(body: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`body` as one program that all blocks share, for the shapes it first meets."""
    return torch.compile(body, dynamic=False)


def choose_arithmetic(*, tf32: bool) -> None:
    """Whether fp32 matrix products may round their factors to TF32, for the whole process."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
