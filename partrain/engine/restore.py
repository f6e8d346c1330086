"""A checkpoint into an engine of any layout: every rank reads the slices that meet what it holds."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partrain.checkpoint.boxes import Box, Located, Range, meetings, numel, shape_of, within
from partrain.checkpoint.fit import keeps_states
from partrain.checkpoint.manifest import MASTER, Manifest, Number, StoredWeight
from partrain.checkpoint.safetensors import opened
from partrain.engine.fragments import Fragment, fragments, inner_optimizer, renew_parameters
from partrain.engine.snapshot import DTYPES, file_name
from partrain.errors import CheckpointError
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan
from partrain.spec.values import plain


class MappedFiles:
    """The files of a checkpoint, mapped as they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes: dict[str, Tensor] = {}

    def values(self, name: str, *, offset: int, count: int, dtype: torch.dtype) -> Tensor:
        """Elements [N] at a byte of a file."""
        if name not in self._bytes:
            with opened(self._folder / name) as file:
                # Copy on write: torch wants memory that could be written to.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._bytes[name] = torch.frombuffer(mapped, dtype=torch.uint8)
        raw = self._bytes[name].narrow(0, offset, count * dtype.itemsize)
        return (raw if offset % dtype.itemsize == 0 else raw.clone()).view(dtype)


def load(engine: Any, plan: Plan, rank: int, *, folder: Path, manifest: Manifest) -> None:
    """Give this rank's share of weights and optimizer states the values of a checkpoint. Collective.

    It must fit (`checkpoint/fit.py`). The states of another optimizer are left out: this one begins without.
    Raises CheckpointError where elements of a weight are not stored.
    """
    files, at = MappedFiles(folder), coordinate_of(rank, plan.layout)
    held = fragments(engine, tensor_rank=at.tp, tensor_size=plan.layout.tp)
    optimizer = inner_optimizer(engine)
    same = keeps_states(manifest, plan)
    if same:
        _make_states(held, manifest, optimizer)
    for fragment in held:
        stored = manifest.weights[fragment.weight.name]
        for state in stored.states if same else (MASTER,):
            target = (
                fragment.master if state == MASTER else fragment.of(optimizer.state[fragment.holder][state])
            )
            fill(target, fragment, stored, state, files)
    renew_parameters(engine)
    engine.global_steps = manifest.step
    engine.global_samples = manifest.samples
    _restore_loss_scale(engine, manifest)
    if manifest.plan.get("layout") == plain(plan.layout):
        _restore_generators(rank, manifest, files)


def _make_states(held: tuple[Fragment, ...], manifest: Manifest, optimizer: torch.optim.Optimizer) -> None:
    """States as the optimizer would have them after a step, in place of none at all.

    A number that the optimizer keeps as a tensor lies beside the weight if the step is fused, else in host
    memory, as torch.optim has it.
    """
    fused = any(optimizer.defaults.get(name) for name in ("fused", "capturable"))
    for fragment in held:
        stored, holder = manifest.weights[fragment.weight.name], fragment.holder
        states = optimizer.state[holder]
        device = holder.device if fused else torch.device("cpu")
        for name, value in stored.scalars.items():
            states[name] = _scalar(value, device)
        for name, kind in stored.states.items():
            if name != MASTER and name not in states:
                states[name] = torch.zeros_like(holder, dtype=DTYPES[kind], requires_grad=False)


def _scalar(value: Number, device: torch.device) -> Any:
    """A number as torch.optim keeps it: a tensor in fp32; a whole one stays a number."""
    return torch.tensor(value, dtype=torch.float32, device=device) if isinstance(value, float) else value


def fill(target: Tensor, fragment: Fragment, stored: StoredWeight, state: str, files: MappedFiles) -> None:
    """Give the elements [N] of a fragment their stored values."""
    filled, dtype = 0, DTYPES[stored.states[state]]
    mine = Range(fragment.box, fragment.start, fragment.stop)
    for piece in stored.slices:
        theirs = Range(piece.box, piece.start, piece.stop)
        common = list(meetings(theirs, mine))
        if not common:
            continue
        source = files.values(
            piece.file,
            offset=stored.state_offset(piece, state),
            count=piece.stop - piece.start,
            dtype=dtype,
        )
        for there, here, box in common:
            _part(target, here, box).copy_(_part(source, there, box))
            filled += numel(box)
    if filled != target.numel():
        raise CheckpointError(f"{fragment.weight.name}: {target.numel() - filled} elements are not stored")


def _part(flat: Tensor, at: Located, box: Box) -> Tensor:
    """What `box` is of the larger box that lies in `flat`."""
    return flat.narrow(0, at.offset, numel(at.box)).view(shape_of(at.box))[within(box, at.box)]


SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What DeepSpeed's dynamic loss scaler remembers; the rest of it are the job's settings."""


def loss_scaler(engine: Any) -> dict[str, Number]:
    """What the loss scaler remembers; empty without one that moves."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is None or not getattr(scaler, "dynamic", False):
        return {}
    return {name: getattr(scaler, name) for name in SCALER}


def _restore_loss_scale(engine: Any, manifest: Manifest) -> None:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    for name in SCALER if loss_scaler(engine) and manifest.loss_scale else ():
        setattr(scaler, name, manifest.loss_scale[name])


def _restore_generators(rank: int, manifest: Manifest, files: MappedFiles) -> None:
    """Random states are of one rank; under another layout there is nobody to have them."""
    name = file_name(rank)
    for generator, (offset, count) in manifest.files[name].random.items():
        state = files.values(name, offset=offset, count=count, dtype=torch.uint8).clone()
        if generator == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)
