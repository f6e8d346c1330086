"""Published weights into an engine of any layout: every rank reads the slices that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partrain.checkpoint.boxes import numel, ranges, shape_of, whole, within
from partrain.checkpoint.published import read_published
from partrain.engine.export import taken
from partrain.engine.fragments import Fragment, fragments, renew_parameters
from partrain.engine.groups import said_by_all
from partrain.engine.restore import MappedFiles
from partrain.engine.snapshot import DTYPES
from partrain.errors import CheckpointError
from partrain.layout.ranks import coordinate_of
from partrain.model.huggingface import stored_weights
from partrain.plan.plan import Plan


def load_published(engine: Any, plan: Plan, rank: int) -> None:
    """Give this rank's share of the weights the values that the plan starts from. Collective.

    Masters get them unrounded, whatever precision training computes in. Raises CheckpointError where the
    folder is not that of the model; on every rank where one has elements that fp16 would make infinite, while
    training computes in it.
    """
    assert plan.weights is not None
    folder, at = Path(plan.weights), coordinate_of(rank, plan.layout)
    tensors, names = read_published(folder, plan.model), stored_weights(plan.model)
    infinite: list[str] = []
    for held in fragments(engine, tensor_rank=at.tp, tensor_size=plan.layout.tp):
        stored = names[held.weight.name]
        _, path, entry = tensors[stored.name]
        # Mapped for one weight only: what was read of the file leaves memory with it.
        flat = MappedFiles(path.parent).values(
            path.name, offset=entry.start, count=numel(whole(entry.shape)), dtype=DTYPES[entry.dtype]
        )
        _fill(held, taken(flat.view(entry.shape), stored, num_heads=plan.model.num_heads))
        if plan.training.precision == "fp16" and held.master.half().isinf().any():
            infinite.append(stored.name)
    _refuse(sorted(set(said_by_all(infinite))), folder)
    renew_parameters(engine)


def _refuse(infinite: list[str], folder: Path) -> None:
    if infinite:
        largest = f"{torch.finfo(torch.float16).max:.0f}"
        raise CheckpointError(
            f"{folder} has elements beyond fp16, whose largest number is {largest}: {', '.join(infinite)}",
            hint="training: {precision: bf16}",
        )


def _fill(held: Fragment, values: Tensor) -> None:
    """Give a fragment its elements of the whole weight, of which only they are read."""
    offset = 0
    for box in ranges(held.box, held.start, held.stop):
        part = held.master.narrow(0, offset, numel(box)).view(shape_of(box))
        part.copy_(values[within(box, whole(held.weight.shape))])
        offset += numel(box)
