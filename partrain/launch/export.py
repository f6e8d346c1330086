"""A checkpoint into a folder that transformers loads: whole or absent.

It is filled under a hidden name beside its own, synced, and renamed. A process with torch writes the tensors.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from partrain.checkpoint.export import INDEX, SHARD_BYTES, exported_files, index_text, num_bytes
from partrain.checkpoint.shelf import Found, damage, newest_whole, sync_folder
from partrain.checkpoint.size import free_bytes
from partrain.checkpoint.tokenizer import copy_tokenizer
from partrain.checkpoint.trained import trained
from partrain.errors import CheckpointError, RunError
from partrain.launch.answer import Answerer
from partrain.plan.plan import Plan
from partrain.run.exporting import ExportRequest
from partrain.run.folder import RunFolder, write_whole
from partrain.run.sampling import Wrote
from partrain.spec.huggingface import CONFIG
from partrain.spec.model import ModelSpec
from partrain.spec.published import config_of
from partrain.spec.training import Precision
from partrain.units import format_bytes


@dataclass(frozen=True)
class Written:
    """An exported folder."""

    files: Mapping[str, int]
    """Name and size in bytes of each."""
    notes: tuple[str, ...]
    """What is not in it that might be."""


def export(
    found: Found, folder: Path, *, precision: Precision | None = None, shard_bytes: int = SHARD_BYTES
) -> Written:
    """Write the model of a checkpoint to `folder`, with the tokenizer's files of where it started from.

    `precision`: of the tensors; None: that of the training. Raises CheckpointError where the checkpoint is
    damaged, transformers has no such model, or `folder` is there; RunError where it cannot be written.
    """
    known = trained(found.manifest)
    kind = precision or known.precision
    beside = {CONFIG: config_text(known.model, kind)}
    files = exported_files(known.model, kind, most_bytes=shard_bytes)
    if len(files) > 1:
        beside[INDEX] = index_text(files, kind)
    check_room(folder, num_bytes(files, kind))
    faults = list(damage(found.path, found.manifest))
    if faults:
        raise CheckpointError(f"{found.path} is damaged:\n      " + "\n      ".join(faults))
    try:
        with _appearing(folder) as hidden:
            request = ExportRequest(
                checkpoint=str(found.path.absolute()),
                folder=str(hidden.absolute()),
                precision=kind,
                shard_bytes=shard_bytes,
            )
            with Answerer(
                "partrain.engine.export", request.to_json(), called="the process that exports"
            ) as at:
                sizes = {said.name: said.size for said in at.said if isinstance(said, Wrote)}
            for name, text in beside.items():
                write_whole(hidden / name, text)
                sizes[name] = len(text.encode())
            copied, notes = copy_tokenizer(Path(known.source), hidden) if known.source else ({}, ())
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error
    return Written({**sizes, **copied}, notes)


def export_run(plan: Plan, run: RunFolder) -> Written:
    """Write the model of a run that is done to the run's folder; as `export`.

    Raises CheckpointError too where the checkpoint of its last step is not there, or not whole.
    """
    found, skipped = newest_whole(run.checkpoints)
    if found is None or found.manifest.step != plan.training.steps:
        newest = f", the newest is of step {found.manifest.step}" if found else ""
        why = "".join(f"; {item}" for item in skipped)
        raise CheckpointError(f"there is no whole checkpoint of step {plan.training.steps}{newest}{why}")
    return export(found, run.exported)


def config_text(model: ModelSpec, precision: Precision) -> str:
    """The folder's config.json.

    Raises CheckpointError for a model that transformers has no architecture for, with every field.
    """
    config, reasons = config_of(model, precision)
    if reasons:
        said = [
            f"{reason.paths[0]}: {reason.message}" + f"; allowed: {reason.allowed}" * bool(reason.allowed)
            for reason in reasons
        ]
        raise CheckpointError("\n      ".join(["transformers has no architecture for this model:", *said]))
    return json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n"


def check_room(folder: Path, needed: int) -> None:
    """Raises CheckpointError where `folder` is there, RunError where `needed` bytes are not free."""
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder} is there already", hint="name another folder: none is overwritten")
    free = free_bytes(folder)
    if free < needed:
        size = format_bytes(needed)
        raise RunError(f"{folder}: {format_bytes(free)} free on its disk, the model takes {size}")


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A hidden folder that gets the name of `folder` at the end, or is gone. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = folder.with_name(f".{folder.name}.{os.getpid()}.exporting")
    hidden.mkdir()
    try:
        yield hidden
        sync_folder(hidden)
        os.rename(hidden, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
