"""`partrain checkpoint inspect`, `verify` and `export`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, Overrides

if TYPE_CHECKING:
    from partrain.checkpoint.fit import Fit
    from partrain.checkpoint.manifest import Manifest
    from partrain.checkpoint.shelf import Found
    from partrain.spec.training import Precision

COMMANDS = ("inspect", "verify", "export")
HELP = "Look at a checkpoint: what is in it, does it load under a job, are all its bytes right; export it."

Ckpt = Annotated[
    Path,
    typer.Argument(
        metavar="CKPT",
        help="The checkpoint's folder; of a run's folder, its newest.",
        show_default=False,
    ),
]
For = Annotated[
    Path | None, typer.Option("--for", metavar="JOB", help="Say whether it loads under this job.")
]

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The new folder; it must not exist.", show_default=False)
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="fp32|bf16|fp16", help="Of the tensors; left out, as it was trained."),
]


def inspect(ckpt: Ckpt, *, job: For = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show what is in a checkpoint, and with `--for` whether it loads under a job.

    Neither torch nor GPUs are needed, and no tensor is read. The exit code is 2
    where it does not load; what would be lost or begin anew is listed.
    """
    from partrain.errors import CheckpointError

    if overrides and job is None:
        raise typer.BadParameter("--set changes a job, and no job is given")
    found = _found(ckpt)
    judged = _fit(found.manifest, job, overrides) if job is not None else None
    if as_json:
        render.say_json({**_as_object(found), **({} if judged is None else {"fit": _fit_object(judged)})})
    else:
        _show(found)
        if judged is not None:
            _show_fit(judged)
    if judged is not None and judged.faults:
        raise typer.Exit(CheckpointError.exit_code)


def verify(ckpt: Ckpt, *, as_json: AsJson = False) -> None:
    """Read every byte of a checkpoint and compare it with the checksums.

    The exit code is 2 where something is wrong.
    """
    from partrain.checkpoint.shelf import damage
    from partrain.errors import CheckpointError
    from partrain.units import format_bytes

    found = _found(ckpt)
    faults = list(damage(found.path, found.manifest))
    if as_json:
        listed = {"path": str(found.path), "ok": not faults, "faults": faults}
        render.say_json({**listed, "size_bytes": found.manifest.num_bytes})
    elif faults:
        raise CheckpointError(f"{found.path} is damaged:\n      " + "\n      ".join(faults))
    else:
        files = len(found.manifest.files)
        render.verdict("ok", f"{found.path}: {files} files, {format_bytes(found.manifest.num_bytes)}")
    if faults:
        raise typer.Exit(CheckpointError.exit_code)


def export(ckpt: Ckpt, folder: Folder, *, dtype: Dtype = None, as_json: AsJson = False) -> None:
    """Write the model of a checkpoint as a folder that transformers loads.

    It gets a config.json and safetensors of at most 5 GB, without the optimizer's
    states, and the tokenizer's files of the folder that training started from. The
    checkpoint's checksums are compared first. The folder appears whole or not at
    all.
    """
    from partrain.launch.export import export as write
    from partrain.units import format_bytes

    precision = _precision(dtype)
    found = _found(ckpt)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    written = write(found, folder, precision=precision)
    total = sum(written.files.values())
    if as_json:
        told = {"size_bytes": total, "files": dict(written.files), "notes": list(written.notes)}
        render.say_json({"path": str(folder), "step": found.manifest.step, **told})
    else:
        render.notes(written.notes)
        render.verdict("ok", f"{folder}: {len(written.files)} files, {format_bytes(total)}")


def _precision(dtype: str | None) -> Precision | None:
    """The precision that `--dtype` names. Raises BadParameter."""
    from typing import get_args

    from partrain.spec.training import Precision

    if dtype is None:
        return None
    if dtype not in get_args(Precision):
        raise typer.BadParameter(f"--dtype is one of {', '.join(get_args(Precision))}, not {dtype!r}")
    return dtype  # type: ignore[return-value]


def _found(path: Path) -> Found:
    """The checkpoint at `path`, or the newest whole one in it. Raises CheckpointError."""
    from partrain.checkpoint.shelf import Found, checkpoints, newest_whole, read_checkpoint
    from partrain.errors import CheckpointError

    inner = path / "checkpoints"
    for folder in (path, inner):
        if checkpoints(folder):
            found, skipped = newest_whole(folder)
            if found is None:
                listed = "; ".join(map(str, skipped))
                raise CheckpointError(f"no checkpoint in {folder} is whole: {listed}")
            return found
    if inner.is_dir():
        raise CheckpointError(f"{path} has no checkpoint yet ({inner})", hint="name another run's folder")
    try:
        return Found(path, read_checkpoint(path))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", hint=error.hint) from error


def _fit(manifest: Manifest, job: Path, overrides: list[str] | None) -> Fit:
    from partrain.checkpoint.fit import fit
    from partrain.cli.planning import plan_job

    return fit(manifest, plan_job(job, overrides).plan)


def _as_object(found: Found) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "path": str(found.path),
        "step": manifest.step,
        "samples": manifest.samples,
        "size_bytes": manifest.num_bytes,
        "created": manifest.created,
        "optimizer": manifest.optimizer,
        "loss_scale": dict(manifest.loss_scale),
        "versions": dict(manifest.versions),
        "layout": manifest.plan.get("layout"),
        "files": len(manifest.files),
        "weights": {
            name: {"shape": list(weight.shape), "states": dict(weight.states), "slices": len(weight.slices)}
            for name, weight in manifest.weights.items()
        },
    }


def _fit_object(judged: Fit) -> dict[str, Any]:
    return {
        "loads": not judged.faults,
        "faults": list(judged.faults),
        "hints": list(judged.hints),
        "notes": list(judged.notes),
        "weights": {
            weight.name: {"verdict": weight.verdict, "states": list(weight.states)}
            for weight in judged.weights
        },
    }


def _show(found: Found) -> None:
    from partrain.errors import escaped
    from partrain.units import format_bytes, format_count

    manifest = found.manifest
    elements = sum(_product(weight.shape) for weight in manifest.weights.values())
    states = escaped(
        ", ".join(sorted({state for weight in manifest.weights.values() for state in weight.states}))
    )
    render.pairs(
        {
            "checkpoint": str(found.path),
            "step": f"{manifest.step}, {format_count(manifest.samples)} sequences trained on",
            "weights": f"{len(manifest.weights)}, {format_count(elements)} elements; {states}",
            "size": f"{format_bytes(manifest.num_bytes)} in {len(manifest.files)} files",
            "optimizer": escaped(manifest.optimizer),
            "written": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created)),
            "by": ", ".join(escaped(f"{name} {version}") for name, version in manifest.versions.items()),
            **_layout_words(manifest.plan.get("layout")),
        }
    )


def _layout_words(layout: Any) -> Mapping[str, str]:
    degrees = ("dp", "pp", "tp", "zero")
    if not isinstance(layout, dict) or not all(type(layout.get(name)) is int for name in degrees):
        return {}
    return {"under": ", ".join(f"{name} {layout[name]}" for name in degrees)}


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _show_fit(judged: Fit) -> None:
    render.say()
    render.notes(judged.notes)
    if not judged.faults:
        lost = "" if all(weight.states for weight in judged.weights) else ", without the optimizer's states"
        render.verdict("ok", f"it loads: {len(judged.weights)} weights{lost}")
        return
    for fault in judged.faults:
        render.say(("-- ", "bad"), fault)
    render.verdict("failed", "it does not load" + "".join(f"; {hint}" for hint in judged.hints))
