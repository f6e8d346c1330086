"""A checkpoint of given weights as the ranks of a layout would write it, without an engine."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from partrain.checkpoint.boxes import Box, numel, whole, within
from partrain.checkpoint.manifest import Manifest, Slice, StoredFile, StoredWeight
from partrain.checkpoint.safetensors import header, write
from partrain.checkpoint.shelf import Found, begin, commit, read_checkpoint
from partrain.model.decoder import decoder_weights
from partrain.model.weights import Weight, shard_range
from partrain.spec.facts import DatasetFacts
from partrain.spec.model import ModelSpec
from partrain.spec.values import plain

TP, DP, STEP = 2, 2, 3
STATES = {"exp_avg": "F32", "weight": "F32"}
"""The weight is not the first of them."""

Held = list[tuple[Weight, Box, int, int]]


def written(folder: Path, model: ModelSpec, wholes: dict[str, Tensor], *, precision: str = "fp32") -> Found:
    """Two tensor ranks with half of a split weight each, cut over two replicas; moments are all 9."""
    hidden = begin(folder, STEP)
    files, slices = {}, dict[str, list[Slice]]()
    for tp in range(TP):
        for dp in range(DP):
            file = f"rank-{tp + TP * dp:05d}.safetensors"
            held = [piece for weight in decoder_weights(model) for piece in of_rank(weight, tp, dp)]
            files[file], found = rank_file(hidden / file, held, wholes)
            for name, piece in found:
                slices.setdefault(name, []).append(piece)
    weights = {
        name: StoredWeight(tuple(wholes[name].shape), STATES, {"step": 3.0}, tuple(pieces))
        for name, pieces in slices.items()
    }
    data = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    training = {"sequence_length": 40, "precision": precision}
    manifest = Manifest(
        step=STEP,
        samples=24,
        optimizer="adamw",
        loss_scale={},
        plan={"model": plain(model), "data": plain(data), "training": training},
        job=None,
        versions={"partrain": "0"},
        created=1.0,
        files=files,
        weights=weights,
    )
    path = commit(folder, manifest, num_ranks=TP * DP)
    return Found(path, read_checkpoint(path))


def of_rank(weight: Weight, tp: int, dp: int) -> Held:
    """The half of this replica of what this tensor rank holds."""
    if weight.tied_to is not None or (weight.split is None and tp):
        return []
    box = list(whole(weight.shape))
    if weight.split is not None:
        box[weight.split] = shard_range(weight, TP, tp)
    size = numel(tuple(box))
    return [(weight, tuple(box), size * dp // DP, size * (dp + 1) // DP)]


def rank_file(
    path: Path, held: Held, wholes: dict[str, Tensor]
) -> tuple[StoredFile, list[tuple[str, Slice]]]:
    """A rank's file, and where in it each weight lies."""
    tensors = [
        (f"{weight.name}/{state}", kind, (stop - start,))
        for weight, _, start, stop in held
        for state, kind in STATES.items()
    ]
    first, _ = header(tensors, {"format": "partrain"})
    offset, parts, found = len(first), [first], []
    for weight, box, start, stop in held:
        values = wholes[weight.name][within(box, whole(weight.shape))].flatten()[start:stop].float()
        parts += [values.new_full((stop - start,), 9.0).numpy().tobytes(), values.numpy().tobytes()]
        found.append((weight.name, Slice(box, start, stop, path.name, offset)))
        offset += 8 * (stop - start)
    size, digest = write(path, parts)
    return StoredFile(path.name, size, digest), found
