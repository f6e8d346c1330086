"""What a folder that transformers loads has in it: tensors, files, the index.

Tensors have the published names of the family; query, key and value may be one. A tied head is not stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partrain.checkpoint.safetensors import ITEM_BYTES
from partrain.model.decoder import decoder_weights
from partrain.model.huggingface import Stored, stored_weights
from partrain.model.weights import Weight
from partrain.spec.model import ModelSpec
from partrain.spec.training import Precision

KINDS: Mapping[Precision, str] = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Data of a file at most, unless one tensor has more: a size that hosts and tools take."""


@dataclass(frozen=True)
class Published:
    """A tensor of the folder."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Weight, ...]
    """Our weights in it: one; or query, key and value."""
    stored: Stored
    """How the first of them is stored."""

    def num_bytes(self, precision: Precision) -> int:
        """Size of its data."""
        return sum(part.numel for part in self.parts) * ITEM_BYTES[KINDS[precision]]


Files = dict[str, tuple[Published, ...]]
"""Name of a file -> its tensors."""


def exported_files(model: ModelSpec, precision: Precision, *, most_bytes: int = SHARD_BYTES) -> Files:
    """The tensors of `model` one after another, in files of at most `most_bytes` of data, or of one tensor.

    Raises KeyError for a weight that the family's published models do not have: there is no config of it.
    """
    return _in_files(published_tensors(model), precision, most_bytes)


def published_tensors(model: ModelSpec) -> tuple[Published, ...]:
    """Every tensor of the folder, in the model's order. Raises KeyError as `exported_files` does."""
    weights = {weight.name: weight for weight in decoder_weights(model) if weight.tied_to is None}
    parts: dict[str, list[tuple[Weight, Stored]]] = {}
    for name, stored in stored_weights(model).items():
        parts.setdefault(stored.name, []).append((weights[name], stored))
    return tuple(_joined(name, found) for name, found in parts.items())


def _joined(name: str, found: list[tuple[Weight, Stored]]) -> Published:
    found.sort(key=lambda part: part[1].third or 0)
    weights, stored = tuple(weight for weight, _ in found), found[0][1]
    first = weights[0].shape
    shape = (sum(weight.shape[0] for weight in weights), *first[1:])
    return Published(name, shape[::-1] if stored.transposed else shape, weights, stored)


def _in_files(tensors: Iterable[Published], precision: Precision, most_bytes: int) -> Files:
    groups: list[list[Published]] = []
    room = 0
    for tensor in tensors:
        size = tensor.num_bytes(precision)
        if not groups or size > room:
            groups.append([])
            room = most_bytes
        groups[-1].append(tensor)
        room -= size
    if len(groups) == 1:
        return {"model.safetensors": tuple(groups[0])}
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": tuple(group)
        for number, group in enumerate(groups, 1)
    }


def num_bytes(files: Files, precision: Precision) -> int:
    """Size of all data."""
    return sum(tensor.num_bytes(precision) for tensors in files.values() for tensor in tensors)


def index_text(files: Files, precision: Precision) -> str:
    """Which file has which tensor."""
    index = {
        "metadata": {"total_size": num_bytes(files, precision)},
        "weight_map": {tensor.name: name for name, tensors in files.items() for tensor in tensors},
    }
    return json.dumps(index, indent=2) + "\n"
