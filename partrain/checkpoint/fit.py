"""Does a checkpoint load under a plan, and what would be lost or begin anew?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from partrain.checkpoint.manifest import MASTER, Manifest
from partrain.checkpoint.size import stores_states
from partrain.errors import CheckpointError, escaped
from partrain.model.decoder import decoder_weights
from partrain.plan.batch_ramp import sequences_before
from partrain.plan.plan import Plan
from partrain.spec.values import plain

_MOST_SHOWN, _LONGEST = 5, 200


@dataclass(frozen=True)
class WeightFit:
    """One weight of the checkpoint or the job."""

    name: str
    verdict: str
    """`loads`; `missing`: the checkpoint has not got it; `extra`: the job has not; `shape`: they differ."""
    stored: tuple[int, ...] | None
    wanted: tuple[int, ...] | None
    states: tuple[str, ...]
    """States of the optimizer that load with it."""

    def __str__(self) -> str:
        name = escaped(self.name)
        if self.verdict == "shape":
            return f"{name} has shape {list(self.stored or ())}, the job's has {list(self.wanted or ())}"
        said = {"missing": "is not in the checkpoint", "extra": "is not in the job's model", "loads": "loads"}
        return f"{name} {said[self.verdict]}"


@dataclass(frozen=True)
class Fit:
    """A checkpoint under a plan."""

    weights: tuple[WeightFit, ...]
    faults: tuple[str, ...]
    """Why it does not load; empty: it does."""
    hints: tuple[str, ...]
    """What would make it load."""
    notes: tuple[str, ...]
    """What is lost or begins anew, and what else differs."""


def fit(manifest: Manifest, plan: Plan) -> Fit:
    """How a checkpoint loads under `plan`."""
    next_sample = sequences_before(manifest.step + 1, plan.training, plan.layout)
    same_optimizer = keeps_states(manifest, plan)
    weights = tuple(_weights(manifest, plan, same_optimizer))
    faults = [str(weight) for weight in weights if weight.verdict != "loads"]
    hints = []
    if next_sample != manifest.samples:
        faults.append(
            f"{manifest.samples} sequences are trained on after {manifest.step} steps, by the job's batches"
            f" {next_sample}: some would be left out or used twice"
        )
        if manifest.step and not manifest.samples % manifest.step:
            hints.append(f"training.global_batch_size: {manifest.samples // manifest.step}")
    return Fit(weights, tuple(faults), tuple(hints), tuple(_notes(manifest, plan, same_optimizer)))


def keeps_states(manifest: Manifest, plan: Plan) -> bool:
    """Whether the optimizer's states load with the weights."""
    name = plan.training.optimizer.name
    return manifest.optimizer == name and stores_states(name)


def _weights(manifest: Manifest, plan: Plan, same_optimizer: bool) -> Iterator[WeightFit]:
    wanted = {w.name: w.shape for w in decoder_weights(plan.model) if w.tied_to is None}
    for name, shape in wanted.items():
        stored = manifest.weights.get(name)
        if stored is None:
            yield WeightFit(name, "missing", None, shape, ())
        elif stored.shape != shape:
            yield WeightFit(name, "shape", stored.shape, shape, ())
        else:
            states = tuple(state for state in stored.states if state != MASTER) if same_optimizer else ()
            yield WeightFit(name, "loads", shape, shape, states)
    for name, stored in manifest.weights.items():
        if name not in wanted:
            yield WeightFit(name, "extra", stored.shape, None, ())


def _notes(manifest: Manifest, plan: Plan, same_optimizer: bool) -> Iterator[str]:
    ours = plain(plan)
    if not same_optimizer:
        lost, begins = escaped(manifest.optimizer), plan.training.optimizer.name
        yield f"the states of {lost} are not in it or not of use: {begins} begins without any"
    if manifest.plan.get("layout") != ours["layout"]:
        yield "the layout differs: the losses after it are equal within rounding; random states begin anew"
    if manifest.step >= plan.training.steps:
        yield f"it has {manifest.step} steps, the job ends at {plan.training.steps}: nothing is left to train"
    for name, path in (
        ("precision", ("training", "precision")),
        ("seed, which decides the data's order,", ("training", "seed")),
        ("data", ("data", "source")),
        ("schedule", ("training", "schedule")),
    ):
        before, after = _at(manifest.plan, path), _at(ours, path)
        if before is not None and before != after:
            yield f"the {name} differs: {escaped(str(before))[:_LONGEST]} -> {after}"


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def refuse_misfits(found: Fit, name: str) -> None:
    """Raise CheckpointError where the checkpoint `name` does not load."""
    if found.faults:
        more = (
            f"\n      and {len(found.faults) - _MOST_SHOWN} more" if len(found.faults) > _MOST_SHOWN else ""
        )
        listed = "\n      ".join(found.faults[:_MOST_SHOWN])
        hint = "; ".join(found.hints) or "--new starts another run"
        raise CheckpointError(f"{name} does not load under this job:\n      {listed}{more}", hint=hint)
