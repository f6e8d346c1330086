"""A whole decoder on one device, with the weights of a checkpoint of any layout."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from partrain.checkpoint.boxes import numel, whole
from partrain.checkpoint.manifest import MASTER, Manifest
from partrain.engine.fragments import Fragment
from partrain.engine.groups import ALONE
from partrain.engine.pipeline import decoder_parts
from partrain.engine.restore import MappedFiles, fill
from partrain.engine.row import built_parts
from partrain.engine.tensor_parallel import Region, mark
from partrain.model.weights import Weight, local_shape
from partrain.spec.model import ModelSpec


def whole_decoder(
    model: ModelSpec, manifest: Manifest, folder: Path, *, device: torch.device, dtype: torch.dtype
) -> list[nn.Module]:
    """The decoder's parts in their order, each read before the next is made; only weights are read.

    Raises CheckpointError where elements of a weight are not stored.
    """
    files = MappedFiles(folder)

    def read(module: nn.Module) -> None:
        for part in module.modules():
            for name, empty in list(part.named_parameters(recurse=False)):
                weight: Weight = empty.entry  # type: ignore[attr-defined]
                values = torch.zeros(local_shape(weight, 1), device=device, dtype=dtype)
                box = whole(weight.shape)
                held = Fragment(weight, box, 0, numel(box), values, 0)
                fill(held.master, held, manifest.weights[weight.name], MASTER, files)
                part.register_parameter(name, mark(nn.Parameter(values, requires_grad=False), weight))

    parts = decoder_parts(model, Region(ALONE), "none")
    return [module.eval() for module in built_parts(parts, read)]
