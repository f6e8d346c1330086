"""The checkpoints of a run: which there are, which one is whole, how one is added, which ones go.

A checkpoint is a folder that appears whole: it is filled under a hidden name, synced, and renamed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from partrain.checkpoint.manifest import Manifest
from partrain.checkpoint.reading import manifest_from
from partrain.checkpoint.safetensors import entries, opened, sha256
from partrain.checkpoint.share import share_path
from partrain.errors import CheckpointError
from partrain.run.folder import write_whole

MANIFEST = "manifest.json"
LATEST = "latest"
"""A file with the name of the newest checkpoint, for people; readers look for themselves."""
_NAME = re.compile(r"step-(\d{8,12})")
_LARGEST_MANIFEST = 2**30
_NUM_NAMED = 5
"""How many of the checkpoints of a folder are named where another was meant."""


@dataclass(frozen=True)
class Found:
    """A whole checkpoint."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that is not whole."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


def checkpoint_name(step: int) -> str:
    """Name of the folder of a step.

    >>> checkpoint_name(1200)
    'step-00001200'
    """
    return f"step-{step:08d}"


def checkpoints(folder: Path) -> tuple[Path, ...]:
    """What is called a checkpoint in `folder`, newest first, whole or not."""
    found: list[tuple[int, Path]] = []
    if folder.is_dir():
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                found.append((int(match[1]), path))
    return tuple(path for _, path in sorted(found, reverse=True))


def read_checkpoint(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there with their sizes.

    Raises CheckpointError for one that is not whole, with what is missing.
    """
    if path.is_symlink() or not path.is_dir():
        gone = "not a folder" if path.exists() else "there is no such checkpoint"
        raise CheckpointError(gone, hint=_where_some_are(path.parent))
    if not (path / MANIFEST).exists():
        raise CheckpointError(f"{MANIFEST}: missing", hint=_where_some_are(path.parent))
    with opened(path / MANIFEST) as file:
        data = file.read(_LARGEST_MANIFEST)
    manifest = manifest_from(data)
    faults = []
    named = _NAME.fullmatch(path.name)
    if named and int(named[1]) != manifest.step:
        faults.append(f"its manifest is of step {manifest.step}")
    for stored in manifest.files.values():
        try:
            with opened(path / stored.name) as file:
                size = os.fstat(file.fileno()).st_size
        except CheckpointError as error:
            faults.append(error.message)
            continue
        if size != stored.size:
            faults.append(f"{stored.name}: has {size} bytes, not {stored.size}")
    if faults:
        raise CheckpointError("; ".join(faults))
    return manifest


def _where_some_are(folder: Path) -> str:
    newest = [path.name for path in checkpoints(folder)[:_NUM_NAMED]]
    if newest:
        return f"{folder} has {', '.join(newest)}"
    return "name one, or a run's folder: `partrain runs` lists the runs"


def newest_whole(folder: Path, *, without: Collection[str] = ()) -> tuple[Found | None, tuple[Skipped, ...]]:
    """The newest checkpoint whose files are all there, and the newer ones with why they are not it.

    `without` are names of checkpoints known to be damaged.
    """
    skipped: list[Skipped] = []
    for path in checkpoints(folder):
        if path.name in without:
            continue
        try:
            return Found(path, read_checkpoint(path)), tuple(skipped)
        except CheckpointError as error:
            skipped.append(Skipped(path, error.message))
    return None, tuple(skipped)


def damage(path: Path, manifest: Manifest, *, part: int = 0, parts: int = 1) -> Iterator[str]:
    """What is wrong with the bytes of a checkpoint's files, of every file in `part` of `parts`."""
    for stored in list(manifest.files.values())[part::parts]:
        try:
            found = sha256(path / stored.name)
            if found != stored.sha256:
                yield f"{stored.name}: its checksum is {found[:12]}..., not {stored.sha256[:12]}..."
                continue
            yield from _disagreements(path / stored.name, manifest)
        except CheckpointError as error:
            yield error.message
        except OSError as error:
            yield f"{stored.name}: {error.strerror or error}"


def _disagreements(path: Path, manifest: Manifest) -> Iterator[str]:
    """Where the header of a file says other than the manifest."""
    found = {entry.start: entry for entry in entries(path).values()}
    claimed = (
        (name, state, weight.state_offset(piece, state), (kind, (piece.stop - piece.start,)))
        for name, weight in manifest.weights.items()
        for piece in weight.slices
        if piece.file == path.name
        for state, kind in weight.states.items()
    )
    for name, state, offset, form in claimed:
        entry = found.get(offset)
        if entry is None or (entry.dtype, entry.shape) != form:
            yield f"{path.name}: its header has another place for {state} of {name}"


def begin(folder: Path, step: int) -> Path:
    """An empty hidden folder for the checkpoint of a step; what an earlier attempt left is removed.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*"):
        _remove(left)
    hidden = hidden_path(folder, step)
    hidden.mkdir()
    return hidden


def hidden_path(folder: Path, step: int) -> Path:
    """Where a checkpoint is until it is whole."""
    return folder / f".{checkpoint_name(step)}.saving"


def commit(folder: Path, manifest: Manifest, *, num_ranks: int) -> Path:
    """Give the hidden folder its manifest and its name, then move `latest`. Raises OSError.

    The manifest's folder has every file, synced, by the word of all ranks.
    """
    hidden, final = hidden_path(folder, manifest.step), folder / checkpoint_name(manifest.step)
    write_whole(hidden / MANIFEST, manifest.to_json())
    read_checkpoint(hidden)
    for rank in range(num_ranks):
        share_path(hidden, rank).unlink(missing_ok=True)
    sync_folder(hidden)
    if final.exists() or final.is_symlink():  # one that was skipped: it is not whole
        _remove(final)
    os.rename(hidden, final)
    sync_folder(folder)
    write_whole(folder / LATEST, f"{final.name}\n")
    sync_folder(folder)
    return final


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expired(steps: Collection[int], *, keep: int, keep_every: int | None) -> tuple[int, ...]:
    """Steps whose checkpoints go: all but the newest `keep` and the multiples of `keep_every`.

    >>> expired([10, 20, 30, 40, 50], keep=2, keep_every=20)
    (10, 30)
    """
    ordered = sorted(steps)
    return tuple(
        step for step in ordered[: max(0, len(ordered) - keep)] if not keep_every or step % keep_every
    )


def remove_expired(folder: Path, *, keep: int, keep_every: int | None) -> tuple[Path, ...]:
    """Remove the checkpoints that have expired; returns which. Damaged ones are left and not counted."""
    whole = {}
    for path in checkpoints(folder):
        try:
            whole[read_checkpoint(path).step] = path
        except CheckpointError:
            continue
    gone = tuple(whole[step] for step in expired(whole, keep=keep, keep_every=keep_every))
    for path in gone:
        hidden = path.with_name(f".{path.name}.removing")
        os.rename(path, hidden)  # half removed it would look damaged
        _remove(hidden)
    return gone


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
