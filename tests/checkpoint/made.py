"""A small checkpoint as two ranks write it, without an engine."""

from __future__ import annotations

import struct
from pathlib import Path

from partrain.checkpoint.boxes import Box
from partrain.checkpoint.manifest import Manifest, Slice, StoredFile, StoredWeight
from partrain.checkpoint.safetensors import header, write
from partrain.checkpoint.share import Share, joined, share_path, write_share
from partrain.checkpoint.shelf import begin, commit

STATES = {"weight": "F32", "exp_avg": "F32"}
SHAPE = (4, 3)
HALVES: tuple[Box, ...] = (((0, 2), (0, 3)), ((2, 4), (0, 3)))


def share(hidden: Path, rank: int) -> Share:
    """What one of two tensor ranks writes: half of the rows of `matrix`, in two ranges."""
    ranges = ((0, 2), (2, 6))
    tensors = [
        (f"matrix/{state}/{rank}/{start}", kind, (stop - start,))
        for start, stop in ranges
        for state, kind in STATES.items()
    ]
    first, num_bytes = header(tensors, {"format": "partrain"})
    values = struct.pack(f"<{num_bytes // 4}f", *range(num_bytes // 4))
    name = f"rank-{rank:05d}.safetensors"
    size, digest = write(hidden / name, (first, values))
    offset, slices = len(first), []
    for start, stop in ranges:
        slices.append(Slice(HALVES[rank], start, stop, name, offset))
        offset += (stop - start) * 8
    weight = StoredWeight(SHAPE, STATES, {"step": 7.0}, tuple(slices))
    return Share(StoredFile(name, size, digest), {"matrix": weight})


def make(folder: Path, step: int) -> Path:
    """A checkpoint of `step` in `folder`."""
    hidden = begin(folder, step)
    shares = [share(hidden, rank) for rank in range(2)]
    for rank, said in enumerate(shares):
        write_share(share_path(hidden, rank), said)
    return commit(folder, manifest(shares, step), num_ranks=2)


def manifest(shares: list[Share], step: int) -> Manifest:
    files, weights = joined(shares)
    return Manifest(
        step=step,
        samples=step * 8,
        optimizer="adamw",
        loss_scale={},
        plan={"name": "made"},
        job="version: 1\n",
        versions={"partrain": "0"},
        created=1.0,
        files=files,
        weights=weights,
    )
