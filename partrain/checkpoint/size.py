"""How large a checkpoint is, before there is one, and whether its disk has room."""

from __future__ import annotations

import shutil
from pathlib import Path

from partrain.checkpoint.export import KINDS
from partrain.checkpoint.safetensors import ITEM_BYTES
from partrain.plan.plan import Plan
from partrain.spec.optimizers import OPTIMIZERS, OptimizerName
from partrain.units import format_bytes

MASTER_BYTES = 4
"""A weight as the optimizer updates it, in fp32."""


def stores_states(optimizer: OptimizerName) -> bool:
    """Whether an optimizer's states are in its checkpoints: those of 8 bits have a scale for every 256 of
    them and cannot be cut along a weight."""
    return OPTIMIZERS[optimizer].state_bytes == MASTER_BYTES


def expected_bytes(plan: Plan) -> int:
    """Bytes of a checkpoint's weights and states; headers and the manifest come on top, below 1 %."""
    facts = OPTIMIZERS[plan.training.optimizer.name]
    states = facts.num_states * facts.state_bytes if stores_states(plan.training.optimizer.name) else 0
    return plan.parameters * (MASTER_BYTES + states)


def exported_bytes(plan: Plan) -> int:
    """Bytes of the tensors that are exported at the end; 0: nothing is."""
    if plan.checkpoint.export == "none":
        return 0
    return plan.parameters * ITEM_BYTES[KINDS[plan.training.precision]]


def shortage(folder: Path, needed: int, what: str = "a checkpoint takes") -> str:
    """Why `needed` bytes do not fit on the disk of `folder`; empty: they do."""
    free = free_bytes(folder)
    if free >= needed:
        return ""
    return f"{folder}: {format_bytes(free)} free on its disk, {what} {format_bytes(needed)}"


def free_bytes(folder: Path) -> int:
    """Bytes that the disk of `folder`, or of the nearest folder above that is there, has left."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
