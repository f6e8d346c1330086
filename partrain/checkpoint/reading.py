"""From the bytes of a manifest to a `Manifest`: nothing in them is trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

from partrain.checkpoint.boxes import Box, numel, tile
from partrain.checkpoint.manifest import (
    MASTER,
    Manifest,
    Number,
    Slice,
    StoredFile,
    StoredWeight,
    signed_text,
)
from partrain.checkpoint.safetensors import ITEM_BYTES
from partrain.errors import CheckpointError, escaped

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_SHOWN = 5
_LAST_SECOND = 253_370_764_800
"""Of the year 9999, the last one that every calendar of Python knows."""


class _Wrong(ValueError):
    """A value is not what the format says."""


def manifest_from(data: bytes) -> Manifest:
    """The manifest that `to_json` wrote.

    Raises CheckpointError for anything else: damaged, of another version, with names that lead out of the
    folder, with slices beyond their file, with elements missing or stored twice.
    """
    value = signed_text(data)
    try:
        files = {file.name: file for file in map(_file, _list(value, "files"))}
        if len(files) < len(value["files"]):
            raise _Wrong("files: a name comes twice")
        names = list(files)
        found = [_weight(item, names) for item in _list(value, "weights")]
        weights = dict(found)
        if len(weights) < len(found):
            raise _Wrong("weights: a name comes twice")
        manifest = Manifest(
            step=_whole(value["step"], "step"),
            samples=_whole(value["samples"], "samples"),
            optimizer=_text(value["optimizer"], "optimizer"),
            loss_scale=_numbers(value["loss_scale"], "loss_scale"),
            plan=_mapping(value["plan"], "plan"),
            job=None if value["job"] is None else _text(value["job"], "job"),
            versions={
                name: _text(item, name) for name, item in _mapping(value["versions"], "versions").items()
            },
            created=_timestamp(value["created"]),
            files=files,
            weights=weights,
        )
    except (_Wrong, KeyError, TypeError, IndexError, AttributeError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"the manifest is wrong: {escaped(said)}") from error
    _refuse_overruns(manifest)
    return manifest


def _refuse_overruns(manifest: Manifest) -> None:
    """Raise CheckpointError for slices that end beyond their file."""
    faults = []
    for name, weight in manifest.weights.items():
        for piece in weight.slices:
            end, size = piece.offset + weight.slice_bytes(piece), manifest.files[piece.file].size
            if end > size:
                faults.append(f"{name}: a slice ends at byte {end} of {piece.file}, which has {size}")
    if faults:
        more = f"; and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        raise CheckpointError(f"the manifest is wrong: {'; '.join(faults[:_MOST_SHOWN])}{more}")


def _file(value: Mapping[str, Any]) -> StoredFile:
    name, digest = value["name"], value["sha256"]
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise _Wrong(f"{name!r} is no name of a file in the checkpoint's folder")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise _Wrong(f"{name}: {digest!r} is no checksum")
    size = _whole(value["size"], name)
    random = {}
    for generator, (first, num_bytes) in _mapping(value["random"], name).items():
        if _whole(first, name) + _whole(num_bytes, name) > size:
            raise _Wrong(f"{name}: the state of a generator ends beyond the file")
        random[generator] = (first, num_bytes)
    return StoredFile(name, size, digest, random)


def _weight(value: Mapping[str, Any], files: list[str]) -> tuple[str, StoredWeight]:
    name, shape = _text(value["name"], "name"), tuple(_list(value, "shape"))
    if not shape or not all(type(size) is int and size > 0 for size in shape):
        raise _Wrong(f"{name}: {shape} is no shape")
    states = _mapping(value["states"], name)
    if MASTER not in states or not all(kind in ITEM_BYTES for kind in states.values()):
        raise _Wrong(f"{name}: {dict(states)} are no states of a weight")
    parts = [_slices(item, name, shape, files) for item in _list(value, "boxes")]
    if not tile([part[0].box for part in parts if part], shape):
        raise _Wrong(f"{name}: its boxes do not hold each element once")
    slices = [piece for part in parts for piece in part]
    return name, StoredWeight(shape, states, _numbers(value["scalars"], name), tuple(slices))


def _slices(value: Mapping[str, Any], name: str, shape: tuple[int, ...], files: list[str]) -> list[Slice]:
    box: Box = tuple((first, end) for first, end in value["box"])
    cuts, held, offsets = _list(value, "cuts"), _list(value, "files"), _list(value, "offsets")
    numbers = [*cuts, *held, *offsets, *(bound for pair in box for bound in pair)]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(box) != len(shape):
        raise _Wrong(f"{name}: a box has numbers that cannot be")
    if not all(first < end <= size for (first, end), size in zip(box, shape, strict=True)):
        raise _Wrong(f"{name}: the box {box} is not in its shape {shape}")
    if not len(cuts) - 1 == len(held) == len(offsets) or cuts[0] != 0 or cuts[-1] != numel(box):
        raise _Wrong(f"{name}: the ranges of a box do not fill it")
    if any(start >= stop for start, stop in pairwise(cuts)):
        raise _Wrong(f"{name}: the ranges of a box overlap")
    if any(number >= len(files) for number in held):
        raise _Wrong(f"{name}: a slice lies in a file that is not listed")
    return [
        Slice(box, start, stop, files[number], offset)
        for start, stop, number, offset in zip(cuts[:-1], cuts[1:], held, offsets, strict=True)
    ]


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(value[key], list):
        raise _Wrong(f"{key}: not a list")
    return value[key]  # type: ignore[no-any-return]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{name}: not an object")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{name}: not text")
    return value


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise _Wrong(f"{name}: {value!r} is no whole number")
    return value


def _number(value: Any, name: str) -> Number:
    if type(value) not in (int, float) or not isfinite(value):
        raise _Wrong(f"{name}: {value!r} is no number")
    return value  # type: ignore[no-any-return]


def _timestamp(value: Any) -> float:
    if not 0 <= _number(value, "created") < _LAST_SECOND:
        raise _Wrong(f"created: {value!r} is no time")
    return float(value)


def _numbers(value: Any, name: str) -> dict[str, Number]:
    return {key: _number(item, f"{name}: {key}") for key, item in _mapping(value, name).items()}
