"""What goes from the folder that training started from into an export: the tokenizer's files, by their names.

The folder comes from outside: its files are copied and not understood, links out of it and code are left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from partrain.checkpoint.published import file_in
from partrain.checkpoint.safetensors import opened
from partrain.errors import CheckpointError, RunError
from partrain.units import format_bytes

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files that tokenizers of transformers read, and what generation is told."""
MAX_BYTES = 2**27
"""Of one of them at most; the largest that is published, Gemma's, has 34 MB."""


def copy_tokenizer(source: Path, target: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Copy the files that are in `source` to the folder `target`.

    Returns the name and size in bytes of each, and why others were left. Raises RunError where one cannot
    be written.
    """
    if not source.is_dir():
        return {}, (f"without the tokenizer's files: {source}, which training started from, is gone",)
    sizes, notes = {}, []
    for name in _there(source):
        try:
            data = _content(source, name)
        except CheckpointError as error:
            notes.append(f"without {name} of {source}: {error.message.removeprefix(f'{name}: ')}")
            continue
        try:
            (target / name).write_bytes(data)
        except OSError as error:
            raise RunError(f"{name} cannot be written: {error.strerror or error}") from error
        sizes[name] = len(data)
    return sizes, tuple(notes)


def _there(folder: Path) -> Iterator[str]:
    return (name for name in NAMES if os.path.lexists(folder / name))


def _content(folder: Path, name: str) -> bytes:
    """All bytes of a file. Raises CheckpointError."""
    try:
        with opened(file_in(folder, name)) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                limit = format_bytes(MAX_BYTES)
                raise CheckpointError(f"{name}: it has {format_bytes(size)}, {limit} at most are copied")
            return file.read(MAX_BYTES)
    except OSError as error:
        raise CheckpointError(f"{name}: {error.strerror or error}") from error
