"""The published weights that training starts from: found in a folder, and judged before anything is started.

Only headers are read. What is in the folder comes from outside: nothing of it is believed, the names in its
index are those of files beside it or of nothing, and its links lead to files of the folder or, in a cache of
Hugging Face, of that cache.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from partrain.checkpoint.export import INDEX, KINDS, Published, published_tensors
from partrain.checkpoint.safetensors import Entry, entries, opened, unique
from partrain.errors import CheckpointError, Fault, escaped
from partrain.model.huggingface import NAMES, base_prefix
from partrain.spec.model import ModelSpec

WHOLE = "model.safetensors"
MAX_INDEX_BYTES = 2**26
_FILE = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors")
_BUFFERS = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)|.*\.rotary_emb\.inv_freq")
"""What older versions stored beside the weights: masks and frequencies, which follow from the config."""
_MOST_SHOWN = 20
_SAVE_AGAIN = "load it with transformers and save_pretrained(DIR)"


class StoredTensor(NamedTuple):
    """Where a tensor is."""

    file: str
    """Name in the folder."""
    path: Path
    """The file itself, no link."""
    entry: Entry


@dataclass
class _Folder:
    """What is found in a folder, and what is wrong with it."""

    path: Path
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_published(folder: Path, model: ModelSpec) -> Mapping[str, StoredTensor]:
    """Where each tensor of `model` is, by its published name.

    Raises CheckpointError with all that stands against it.
    """
    found = _judged(folder, model)
    if found.faults:
        raise CheckpointError("\n      ".join([f"{folder} cannot be started from:", *found.faults]))
    return found.tensors


def weight_faults(folder: Path, model: ModelSpec, *, path: str) -> tuple[Fault, ...]:
    """All that stands against starting `model` from the weights in `folder`, which `path` names."""
    faults = _judged(folder, model).faults
    more = [f"and {len(faults) - _MOST_SHOWN} more faults"] if len(faults) > _MOST_SHOWN else []
    allowed = f"a folder with config.json and {WHOLE}, or {INDEX} and its files"
    return tuple(
        Fault(path, said, allowed if i == 0 else "", _SAVE_AGAIN if i == 0 else "")
        for i, said in enumerate([*faults[:_MOST_SHOWN], *more])
    )


def _judged(folder: Path, model: ModelSpec) -> _Folder:
    found = _Folder(folder)
    if not folder.is_dir():
        found.faults.append(f"{folder} is no folder")
    elif os.path.lexists(folder / WHOLE):
        _read_file(found, WHOLE)
    elif os.path.lexists(folder / INDEX):
        _read_indexed(found)
    else:
        found.faults.append(_without_safetensors(folder))
    if not found.faults:
        _compare(found, model)
    return found


def file_in(folder: Path, name: str) -> Path:
    """The file that `name` stands for in `folder`, itself no link.

    In a cache of Hugging Face (`models--X/snapshots/HASH`) files are links into `models--X/blobs`. Raises
    CheckpointError for a link to anything else that is not in the folder: one that came with a download would
    have any file of this machine read, and its tokenizer's files passed on.
    """
    path = folder / name
    if not path.is_symlink():
        return path
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    places = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if target.parent not in places:
        raise CheckpointError(f"{name}: a link out of the folder, to {escaped(str(target))}")
    return target


def _compare(found: _Folder, model: ModelSpec) -> None:
    """Whether the tensors are those of the model; all get the names that they have beside a head."""
    try:
        wanted = {tensor.name: tensor for tensor in published_tensors(model)}
    except KeyError as error:
        found.faults.append(f"no published {model.family} has the model's {error.args[0]}")
        return
    prefix = base_prefix(model.family)
    if not any(name.startswith(prefix) for name in found.tensors):  # saved from the base model alone
        found.tensors = {
            prefix + name if prefix + name in wanted else name: at for name, at in found.tensors.items()
        }
    found.faults += _unlike(found.tensors, wanted, model)


def _without_safetensors(folder: Path) -> str:
    with_pickles = any(islice(folder.glob("*.bin"), 1)) or any(islice(folder.glob("*.pt*"), 1))
    pickles = ", only pickles, which are not read: loading one runs what is in it" if with_pickles else ""
    return f"there is no {WHOLE} and no {INDEX} in {folder}{pickles}"


def _read_file(found: _Folder, name: str) -> None:
    path = found.path / name
    try:
        path = file_in(found.path, name)
        table = entries(path)
    except CheckpointError as error:
        found.faults.append(name + escaped(error.message.removeprefix(path.name).removeprefix(name)))
        return
    for tensor, entry in table.items():
        if tensor in found.tensors:
            other = found.tensors[tensor].file
            found.faults.append(f"{escaped(tensor)} is in {other} and in {name}")
        found.tensors[tensor] = StoredTensor(name, path, entry)


def _read_indexed(found: _Folder) -> None:
    """The files that the index names; it and they have to agree."""
    try:
        listed = _weight_map(found.path)
    except CheckpointError as error:
        found.faults.append(f"{INDEX}: {error.message.removeprefix(f'{INDEX}: ')}")
        return
    for name in sorted(set(listed.values())):
        if _FILE.fullmatch(name):
            _read_file(found, name)
        else:
            found.faults.append(f'{INDEX}: "{escaped(name)}" is not the name of a safetensors file beside it')
    if found.faults:
        return
    for tensor in {**listed, **found.tensors}:
        at = found.tensors[tensor].file if tensor in found.tensors else "no file"
        said = listed.get(tensor, "nowhere")
        if at != said:
            found.faults.append(f"{escaped(tensor)} is in {at}, by {INDEX} in {said}")


def _weight_map(folder: Path) -> Mapping[str, str]:
    """Tensor -> file, as the index has it. Raises CheckpointError."""
    try:
        with opened(file_in(folder, INDEX)) as file:
            listed = json.loads(file.read(MAX_INDEX_BYTES), object_pairs_hook=unique)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"it cannot be read: {escaped(str(error))}") from error
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise CheckpointError("its weight_map is no mapping of tensors to files")
    return listed


def _unlike(
    tensors: Mapping[str, StoredTensor], wanted: Mapping[str, Published], model: ModelSpec
) -> Iterator[str]:
    """Where the tensors are not the wanted ones."""
    for name, tensor in wanted.items():
        if name not in tensors:
            yield f"{name} {list(tensor.shape)} is missing"
        else:
            yield from _misfit(tensor, tensors[name])
    ignored = {f"{NAMES[model.family]['head'].name}.weight"} if model.tie_embeddings else set()
    for name, there in tensors.items():
        if name not in wanted and name not in ignored and not _BUFFERS.fullmatch(name):
            yield f"{escaped(name)} {list(there.entry.shape)} in {there.file} is no tensor of the model"


def _misfit(wanted: Published, there: StoredTensor) -> Iterator[str]:
    shape, kind = there.entry.shape, there.entry.dtype
    if shape != wanted.shape:
        yield f"{wanted.name} in {there.file} is {list(shape)}, of the model {list(wanted.shape)}"
    if kind not in KINDS.values():
        yield f"{wanted.name} in {there.file} is {kind}; {', '.join(KINDS.values())} can be read"
