"""What is in a checkpoint: every weight with its states, and where each slice of them is stored.

A slice is a flat range in a box of a weight. The boxes of a weight tile it, and the ranges in a box follow
one another, so that no element is missing or stored twice. The states of a slice lie one after another, in
the order in which the weight names them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from partrain.checkpoint.boxes import Box
from partrain.checkpoint.safetensors import ITEM_BYTES, unique
from partrain.errors import CheckpointError

FORMAT = 1
MASTER = "weight"
"""State that is the weight itself, in the precision of the optimizer."""
_UNSIGNED = "0" * 64
"""Stands for the manifest's own checksum while it is computed."""

Number = int | float


@dataclass(frozen=True)
class StoredFile:
    """A file of the checkpoint."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal."""
    random: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Generator -> first byte and number of bytes of its state, of the rank that wrote the file."""


@dataclass(frozen=True)
class Slice:
    """Elements `start` to `stop` - 1 of a box of a weight, with all their states."""

    box: Box
    start: int
    stop: int
    file: str
    offset: int
    """First byte in the file."""


@dataclass(frozen=True)
class StoredWeight:
    """A weight with its states."""

    shape: tuple[int, ...]
    """Whole, without padding."""
    states: Mapping[str, str]
    """State -> kind of its elements, in the order in which they are stored; the weight itself among them."""
    scalars: Mapping[str, Number]
    """States that are one number for the weight, such as the optimizer's step."""
    slices: tuple[Slice, ...]

    def state_offset(self, piece: Slice, state: str) -> int:
        """First byte of a state of a slice in its file."""
        before = list(self.states)[: list(self.states).index(state)]
        return piece.offset + (piece.stop - piece.start) * sum(
            ITEM_BYTES[self.states[name]] for name in before
        )

    def slice_bytes(self, piece: Slice) -> int:
        """Bytes of a slice with all its states."""
        return (piece.stop - piece.start) * sum(ITEM_BYTES[kind] for kind in self.states.values())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint."""

    step: int
    """Optimizer steps done; the next one is `step` + 1."""
    samples: int
    """Sequences trained on, which is the next position in the data's order."""
    optimizer: str
    """Name of the optimizer whose states are stored."""
    loss_scale: Mapping[str, Number]
    """The loss scaler's numbers; empty without one."""
    plan: Mapping[str, Any]
    """The plan of the run, without the values of its environment."""
    job: str | None
    """The job file; None where it may hold a secret."""
    versions: Mapping[str, str]
    """Package -> version that wrote the checkpoint."""
    created: float
    """Seconds since 1970."""
    files: Mapping[str, StoredFile]
    weights: Mapping[str, StoredWeight]

    @property
    def num_bytes(self) -> int:
        """Size of all files but the manifest."""
        return sum(file.size for file in self.files.values())

    def to_json(self) -> str:
        """Its text, with its own checksum."""
        files = {name: number for number, name in enumerate(self.files)}
        value = {
            "format": FORMAT,
            "sha256": _UNSIGNED,
            **{name: getattr(self, name) for name in _PLAIN},
            "files": [
                {"name": file.name, "size": file.size, "sha256": file.sha256, "random": dict(file.random)}
                for file in self.files.values()
            ],
            "weights": [
                {
                    "name": name,
                    "shape": weight.shape,
                    "states": weight.states,
                    "scalars": weight.scalars,
                    "boxes": list(_boxes(weight, files)),
                }
                for name, weight in self.weights.items()
            ],
        }
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        return text.replace(_UNSIGNED, hashlib.sha256(text.encode()).hexdigest(), 1)


_PLAIN = ("step", "samples", "optimizer", "loss_scale", "plan", "job", "versions", "created")


def _boxes(weight: StoredWeight, files: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    found: dict[Box, list[Slice]] = {}
    for piece in weight.slices:
        found.setdefault(piece.box, []).append(piece)
    for box, pieces in sorted(found.items()):
        pieces.sort(key=lambda piece: piece.start)
        yield {
            "box": box,
            "cuts": [0, *(piece.stop for piece in pieces)],
            "files": [files[piece.file] for piece in pieces],
            "offsets": [piece.offset for piece in pieces],
        }


def signed_text(data: bytes) -> dict[str, Any]:
    """The object that a manifest's bytes spell, its checksum found to be right.

    Raises CheckpointError.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=unique)
        version, said = value["format"], value["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the manifest cannot be read: {error}") from error
    if version != FORMAT:
        raise CheckpointError(f"the manifest has format {version!r}, this version reads {FORMAT}")
    unsigned = data.replace(str(said).encode(), _UNSIGNED.encode(), 1)
    if hashlib.sha256(unsigned).hexdigest() != said:
        raise CheckpointError("the manifest's checksum is wrong: it is damaged or was edited")
    return value  # type: ignore[no-any-return]
