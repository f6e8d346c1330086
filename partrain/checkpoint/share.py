"""What one rank has written: its word to the rank that joins all of them into the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partrain.checkpoint.boxes import Box, numel
from partrain.checkpoint.manifest import Slice, StoredFile, StoredWeight
from partrain.errors import CheckpointError
from partrain.run.folder import write_json
from partrain.run.reading import read_object


@dataclass(frozen=True)
class Share:
    """A rank's file and what is in it, or why there is none."""

    file: StoredFile | None
    weights: Mapping[str, StoredWeight]
    """Its weights, each with the slices that are in the file."""
    failure: str = ""


def share_path(folder: Path, rank: int) -> Path:
    """Where a rank's word is until the manifest says it."""
    return folder / f"rank-{rank:05d}.json"


def write_share(path: Path, share: Share) -> None:
    """Leave the word, whole. Raises OSError."""
    file = share.file
    write_json(
        path,
        {
            "failure": share.failure,
            "file": None if file is None else [file.name, file.size, file.sha256, dict(file.random)],
            "weights": {
                name: [
                    weight.shape,
                    weight.states,
                    weight.scalars,
                    [[piece.box, piece.start, piece.stop, piece.offset] for piece in weight.slices],
                ]
                for name, weight in share.weights.items()
            },
        },
    )


def read_share(path: Path) -> Share | None:
    """The word that `write_share` left; None: it is not there yet."""
    value = read_object(path)
    if value is None:
        return None
    if value["file"] is None:
        return Share(None, {}, value["failure"])
    name, size, digest, random = value["file"]
    file = StoredFile(name, size, digest, {key: (first, count) for key, (first, count) in random.items()})
    return Share(file, {key: _weight(item, name) for key, item in value["weights"].items()})


def _weight(value: Any, file: str) -> StoredWeight:
    shape, states, scalars, pieces = value
    slices = tuple(
        Slice(tuple((first, end) for first, end in box), start, stop, file, offset)
        for box, start, stop, offset in pieces
    )
    return StoredWeight(tuple(shape), states, scalars, slices)


def joined(shares: Iterable[Share]) -> tuple[dict[str, StoredFile], dict[str, StoredWeight]]:
    """Files and weights of all ranks together.

    Raises CheckpointError where ranks disagree about a weight, or where what they hold of one overlaps or
    leaves a gap.
    """
    files: dict[str, StoredFile] = {}
    weights: dict[str, StoredWeight] = {}
    slices: dict[str, list[Slice]] = {}
    for share in shares:
        if share.file is not None:
            files[share.file.name] = share.file
        for name, weight in share.weights.items():
            if _kind(weights.setdefault(name, weight)) != _kind(weight):
                raise CheckpointError(f"{name}: ranks hold other states of it")
            slices.setdefault(name, []).extend(weight.slices)
    for name, pieces in slices.items():
        pieces.sort(key=lambda piece: (piece.box, piece.start))
        _refuse_gaps(name, pieces)
    return files, {name: replace(weight, slices=tuple(slices[name])) for name, weight in weights.items()}


def _kind(weight: StoredWeight) -> tuple[Any, ...]:
    return weight.shape, dict(weight.states), dict(weight.scalars)


def _refuse_gaps(name: str, pieces: list[Slice]) -> None:
    """The ranges in each box follow one another from its first element to its last."""
    ends: dict[Box, int] = {}
    for piece in pieces:
        if piece.start != ends.get(piece.box, 0):
            raise CheckpointError(f"{name}: what ranks hold of it does not follow one another at {piece}")
        ends[piece.box] = piece.stop
    if any(end != numel(box) for box, end in ends.items()):
        raise CheckpointError(f"{name}: no rank holds the end of one of its boxes")
