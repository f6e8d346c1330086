"""What is known of each optimizer: which keys it reads and their defaults, what it keeps, where it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from partrain.spec.section import Fraction, NonNegative, Positive

OptimizerName = Literal["adamw", "lion", "muon", "adamw8bit"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """The optimizer and its numbers; what is left out is the optimizer's own default."""

    name: OptimizerName = "adamw"
    """AdamW (Loshchilov and Hutter 2019), Lion (Chen et al. 2023), Muon for the blocks' matrices with AdamW
    for all else (Jordan et al. 2024, Liu et al. 2025), or AdamW with 8-bit states (Dettmers et al. 2022)."""
    lr: Positive | None = None
    """Peak learning rate; 3e-4, with lion 1e-4."""
    betas: tuple[Fraction, Fraction] | None = None
    """Decay rates of the first and second moment, of lion for the update and for the momentum; (0.9, 0.95),
    with lion (0.95, 0.98): the usual ones for language models."""
    eps: Positive | None = None
    """Added to the root of the second moment, 1e-8; lion has none."""
    momentum: Fraction | None = None
    """Decay rate of muon's momentum, 0.95."""
    weight_decay: NonNegative | None = None
    """Decay of matrices and embeddings, 0.1, with lion 0.3; norms and biases never decay."""
    grad_clip: NonNegative = 1.0
    """Largest norm of the whole model's gradient; 0 turns clipping off."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """The optimizer with every number decided; None where it reads none."""

    name: OptimizerName
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive | None
    momentum: Fraction | None
    weight_decay: NonNegative
    grad_clip: NonNegative


@dataclass(frozen=True)
class OptimizerFacts:
    """An optimizer, as far as plans and estimates need to know it."""

    defaults: Mapping[str, Any]
    """Key -> default; it reads no others but `name` and `grad_clip`."""
    num_states: int
    """Numbers kept for each parameter, master weights and gradients not counted."""
    state_bytes: int
    """Bytes of such a number."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages under which it gives the same result as without."""
    offload: bool = True
    """Whether its states may be in host memory."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    needs: tuple[str, str] | None = None
    """A package besides those of the `train` extra, and the extra that brings it."""


_ADAMW: Mapping[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

OPTIMIZERS: Mapping[OptimizerName, OptimizerFacts] = {
    "adamw": OptimizerFacts(_ADAMW, num_states=2, state_bytes=4),
    # Chen et al. 2023, section 5: a third to a tenth of AdamW's rate, and as much more decay, so that their
    # product stays; (0.95, 0.98) is theirs for language models.
    "lion": OptimizerFacts(
        {"lr": 1e-4, "betas": (0.95, 0.98), "weight_decay": 0.3}, num_states=1, state_bytes=4
    ),
    # The update's size is AdamW's (Liu et al. 2025, section 2.2), and so are rate and decay.
    "muon": OptimizerFacts(
        {**_ADAMW, "momentum": 0.95}, num_states=2, state_bytes=4, zero=(0, 1, 2), offload=False
    ),
    # One scale for 256 numbers comes to 2 % more, which is left out.
    "adamw8bit": OptimizerFacts(
        _ADAMW, num_states=2, state_bytes=1, offload=False, devices=("cuda",), needs=("bitsandbytes", "8bit")
    ),
}


def resolve_optimizer(section: OptimizerSection) -> OptimizerSpec:
    """The optimizer that `section` asks for, its defaults filled in.

    >>> resolve_optimizer(OptimizerSection(name="lion", lr=2e-4)).weight_decay
    0.3
    """
    given: dict[str, Any] = {key.name: getattr(section, key.name) for key in fields(section)}
    defaults = OPTIMIZERS[section.name].defaults
    filled: dict[str, Any] = {
        key: defaults.get(key) if value is None else value for key, value in given.items()
    }
    return OptimizerSpec(**filled)


def unread_keys(optimizer: OptimizerSection | OptimizerSpec) -> tuple[str, ...]:
    """Keys with a value that the optimizer does not read.

    >>> unread_keys(OptimizerSection(name="lion", eps=1e-6))
    ('eps',)
    """
    read = {"name", "grad_clip", *OPTIMIZERS[optimizer.name].defaults}
    names = (key.name for key in fields(optimizer))
    return tuple(name for name in names if name not in read and getattr(optimizer, name) is not None)
