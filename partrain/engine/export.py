"""The process that exports: `python -m partrain.engine.export`.

A request comes on standard input; each file that is written is told on standard output. Tensors are read,
turned and written one at a time: of the model, there is never more than one in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from partrain.checkpoint.boxes import numel, whole
from partrain.checkpoint.export import KINDS, Published, exported_files
from partrain.checkpoint.manifest import MASTER, Manifest
from partrain.checkpoint.safetensors import header, write
from partrain.checkpoint.shelf import read_checkpoint
from partrain.checkpoint.trained import trained
from partrain.engine.fragments import Fragment
from partrain.engine.restore import MappedFiles, fill
from partrain.engine.snapshot import DTYPES
from partrain.engine.speaking import speak
from partrain.errors import CheckpointError, RunError
from partrain.model.huggingface import Stored
from partrain.model.weights import Weight
from partrain.run.exporting import ExportRequest
from partrain.run.sampling import Said, Wrote

_METADATA = {"format": "pt"}
"""What transformers asks of a file: that its tensors are as torch has them."""


def words(request: ExportRequest) -> Iterator[Said]:
    """Write the files, each told as it is done.

    Raises CheckpointError where the checkpoint cannot be read, RunError where a file cannot be written.
    """
    source, target = Path(request.checkpoint), Path(request.folder)
    manifest = read_checkpoint(source)
    model, kind = trained(manifest).model, KINDS[request.precision]
    dtype = DTYPES[kind]
    files = exported_files(model, request.precision, most_bytes=request.shard_bytes)

    def whole_tensor(tensor: Published) -> Tensor:
        parts = [_weight(part, manifest, source, dtype) for part in tensor.parts]
        return joined(parts, tensor.stored, num_heads=model.num_heads)

    for name, tensors in files.items():
        first, _ = header(((tensor.name, kind, tensor.shape) for tensor in tensors), _METADATA)
        data = (_bytes(whole_tensor(tensor)) for tensor in tensors)
        try:
            size, _ = write(target / name, chain((first,), data))
        except OSError as error:
            raise RunError(f"{name} cannot be written: {error.strerror or error}") from error
        yield Wrote(name, size)


def _bytes(tensor: Tensor) -> memoryview:
    view: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return view


def _weight(weight: Weight, manifest: Manifest, folder: Path, dtype: torch.dtype) -> Tensor:
    """A weight whole, rounded to `dtype`.

    Raises CheckpointError where elements are not stored, or are beyond what `dtype` can say.
    """
    box = whole(weight.shape)
    values = torch.zeros(weight.shape, dtype=dtype)
    held = Fragment(weight, box, 0, numel(box), values, 0)
    # Files are mapped for one weight only: what was read of them leaves memory with it.
    fill(held.master, held, manifest.weights[weight.name], MASTER, MappedFiles(folder))
    if dtype == torch.float16 and values.isinf().any():
        raise CheckpointError(f"{weight.name} has elements beyond fp16", hint="--dtype bf16 or --dtype fp32")
    return values


def joined(parts: list[Tensor], stored: Stored, *, num_heads: int) -> Tensor:
    """Our weights as theirs: one, or query, key and value of `num_heads` heads each."""
    if stored.third is None:
        (tensor,) = parts
    elif stored.by_head:
        by_head = [part.view(num_heads, -1, *part.shape[1:]) for part in parts]
        tensor = torch.stack(by_head, dim=1).flatten(0, 2)
    else:
        tensor = torch.cat(parts)
    return tensor.t() if stored.transposed else tensor


def taken(tensor: Tensor, stored: Stored, *, num_heads: int) -> Tensor:
    """Ours out of theirs: what `joined` makes of it, the other way about. A view, except of fused heads."""
    tensor = tensor.t() if stored.transposed else tensor
    if stored.third is None:
        return tensor
    if stored.by_head:
        return tensor.view(num_heads, 3, -1, *tensor.shape[1:])[:, stored.third].flatten(0, 1)
    return tensor.chunk(3)[stored.third]


def main() -> int:
    """Exit code of the process."""
    return speak(lambda text: words(ExportRequest.from_json(text)))


if __name__ == "__main__":
    sys.exit(main())
