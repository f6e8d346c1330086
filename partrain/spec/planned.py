"""Keys and values of the job format whose work has not landed: refused, never accepted and ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from partrain.errors import Fault
from partrain.spec.keypath import Loc, dotted
from partrain.spec.scalars import shown
from partrain.spec.tree import Tree


class Planned(NamedTuple):
    """A key, or some of its values, and what to do until they are there."""

    path: str
    instead: str
    values: tuple[Any, ...] | Callable[[Any], bool] | None = None
    """Only these values are planned; None: the whole key is."""
    allowed: str = ""
    """What is left of the values, where the key's own bounds do not say it."""
    decides: tuple[str, ...] = ()
    """Keys that would follow from it, so that they are not missing."""


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_SIZES = ("model.num_layers", "model.hidden_size", "model.num_heads")
_LOCAL = "leave it out: the processes run on this machine"
PLANNED = (
    Planned("model.python", "model.family, or the model's fields", decides=_SIZES),
    Planned("data.train", "one source: builtin:python-source, synthetic or a path", _is_list, "text"),
    Planned("training.epochs", "training.steps or training.tokens"),
    Planned("training.precision", "precision: bf16", ("fp8",)),
    Planned("training.grad_accum_dtype", "leave it out: gradients are accumulated in fp32"),
    Planned("training.optimizer.name", "name: adamw", ("adafactor", "sgd")),
    Planned("parallel.cp", "leave it out: sequences are not split over devices"),
    Planned("parallel.ep", "leave it out: there are no expert layers"),
    Planned("hardware.spare_nodes", "leave it out: no node is held in reserve"),
    Planned("launch.backend", "backend: local", ("ssh", "slurm", "mpi", "kubernetes", "manual")),
    Planned("launch.slurm", _LOCAL),
    Planned("launch.hostfile", _LOCAL),
    Planned("launch.restarts", "leave it out: launch again after a failure"),
    Planned("launch.secrets", "set the variable in the environment of `partrain launch`"),
    Planned("run.storage", "leave it out: the run folder is on this machine"),
)
PLANNED_KEYS = tuple(tuple(entry.path.split(".")) for entry in PLANNED if entry.values is None)


def planned_faults(tree: Tree) -> Iterator[tuple[Loc, Fault]]:
    """A fault for everything in `tree` that is planned."""
    for entry in PLANNED:
        loc = tuple(entry.path.split("."))
        found, value = _find(tree.data, loc)
        if entry.values is None and loc in tree.keys and (found or loc in tree.doubtful):
            tree.doubtful |= {tuple(path.split(".")) for path in entry.decides}
            yield loc, Fault(entry.path, "planned, not in this version", "", entry.instead, tree.keys[loc])
        elif found and _is_planned(entry, value):
            came = "a list" if isinstance(value, list) else shown(value)
            message = f"{came} is planned, not in this version"
            yield loc, Fault(dotted(loc), message, entry.allowed, entry.instead, tree.places.get(loc))


def _is_planned(entry: Planned, value: Any) -> bool:
    if callable(entry.values):
        return entry.values(value)
    return entry.values is not None and any(value == v and type(value) is type(v) for v in entry.values)


def _find(data: Mapping[str, Any], loc: tuple[str, ...]) -> tuple[bool, Any]:
    value: Any = data
    for part in loc:
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value
