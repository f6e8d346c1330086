"""A job file, read: what is right in it, what is wrong with it, and where everything stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partrain.errors import Fault, Place, Reason
from partrain.spec.files import NoText, read_bytes, text_of
from partrain.spec.job import JobSpec
from partrain.spec.keypath import Loc, dotted
from partrain.spec.planned import planned_faults
from partrain.spec.rules import reasons_of
from partrain.spec.tree import (
    MAX_DEPTH,
    Tree,
    Unreadable,
    file_origin,
    leave_out,
    read_mapping,
)
from partrain.spec.values import Misfit, read


@dataclass(frozen=True)
class Reading:
    """What could be read of a job."""

    job: JobSpec | None
    """The job, from all that is right, so that the rules among its values can be judged; it may be used
    only where there are no faults. None when the text could not be read at all."""
    faults: tuple[Fault, ...]
    """All that is wrong, in order of place."""
    places: Mapping[str, Place]
    """Key path (`training.optimizer.betas.0`) -> place of its value; of a section or list: of its key."""
    origins: Mapping[str, str]
    """Key path of every value given -> `job.yaml:7`, `--set` or `job.yaml:7 (${STEPS})`."""
    doubtful: frozenset[str]
    """Key paths left out of `job` because they are faulty or missing; a required one has a stand-in there."""
    given: bytes = b""
    """What was read, as it was given."""


_STAND_INS: Mapping[tuple[str, ...], Any] = {
    ("version",): 1,
    ("name",): "unnamed",
    ("model",): {},
    ("data",): {"train": "synthetic"},
    ("data", "train"): "synthetic",
    ("training",): {"sequence_length": 1, "global_batch_size": 1},
    ("training", "sequence_length"): 1,
    ("training", "global_batch_size"): 1,
}
"""Put where a required value is missing or was left out, so that the rules among the others still run."""

_Found = tuple[Loc, Fault]


def read_job(path: Path, *, overrides: Sequence[str] = (), environ: Mapping[str, str]) -> Reading:
    """The job in the file `path`, with `--set` overrides and `${NAME}` taken from `environ`.

    Raises nothing: a file that cannot be opened is a fault too.
    """
    try:
        data = read_bytes(path)
    except NoText as error:
        return _nothing(error.args[0])
    return read_job_text(data, source=str(path), overrides=overrides, environ=environ)


def read_job_text(
    text: bytes, *, source: str, overrides: Sequence[str] = (), environ: Mapping[str, str]
) -> Reading:
    """The job in `text`, which stands in `source`; the pure part of `read_job`."""
    try:
        decoded = text_of(text, source)
        tree = read_mapping(decoded, file_origin(decoded, source), environ)
    except (NoText, Unreadable) as error:
        return _nothing(error.args[0])
    if overrides:
        _apply(overrides, tree, environ)
    found = tree.faults + _left_out(planned_faults(tree), tree)
    if "deepspeed" in tree.data:
        found += _left_out(_raw_faults(tree), tree)
    job = _validated(tree, found)
    places = {dotted(loc): place for loc, place in tree.places.items()}
    doubtful = frozenset(dotted(loc) for loc in tree.doubtful)
    faults = [_completed(loc, fault) for loc, fault in found] + _broken_rules(job, places, doubtful)
    origins = {dotted(loc): words for loc, words in tree.origins.items()}
    return Reading(job, _in_order(faults), places, origins, doubtful, text)


def place_of(reading: Reading, key_path: str) -> Place | None:
    """Place of the value, else of the closest section around it; None when neither is in the file."""
    while key_path and key_path not in reading.places:
        key_path = key_path.rpartition(".")[0]
    return reading.places.get(key_path)


def is_doubtful(doubtful: frozenset[str], key_path: str) -> bool:
    """Whether the value at `key_path`, or a section around it, was left out for a fault."""
    while key_path and key_path not in doubtful:
        key_path = key_path.rpartition(".")[0]
    return bool(key_path)


def _nothing(fault: Fault) -> Reading:
    return Reading(None, (fault,), {}, {}, frozenset())


# A right job needs none of the words for wrong ones, and `partrain check` has to start at once: what only
# some jobs need is imported by those.


def _apply(overrides: Sequence[str], tree: Tree, environ: Mapping[str, str]) -> None:
    from partrain.spec.overrides import apply_overrides

    apply_overrides(tree, overrides, environ)


def _raw_faults(tree: Tree) -> Iterable[_Found]:
    from partrain.spec.deepspeed import deepspeed_faults

    return deepspeed_faults(tree)


def _completed(loc: Loc, fault: Fault) -> Fault:
    from partrain.spec.faults import completed

    return completed(loc, fault)


def _left_out(found: Iterable[_Found], tree: Tree) -> list[_Found]:
    """`found`, each faulty value taken out of the tree."""
    listed = list(found)
    for loc, _ in listed:
        leave_out(tree, loc)
    return listed


def _validated(tree: Tree, found: list[_Found]) -> JobSpec | None:
    """The job in what is right of `tree`; adds its faults to `found`."""
    try:
        return read(JobSpec, tree.data)
    except Misfit as error:
        from partrain.spec.faults import misfit_faults

        found += _left_out(misfit_faults(error.problems, tree), tree)
    _put_stand_ins(tree.data)
    for _ in range(MAX_DEPTH):
        try:
            return read(JobSpec, tree.data)
        except Misfit as error:
            # A section that lacks a required value, left out above, goes as a whole.
            for problem in error.problems:
                leave_out(tree, problem.loc[:-1])
    return None


def _put_stand_ins(data: dict[str, Any]) -> None:
    for (*section, key), value in _STAND_INS.items():
        holder = data[section[0]] if section else data
        if key not in holder:
            holder[key] = dict(value) if isinstance(value, dict) else value


def _broken_rules(job: JobSpec | None, places: Mapping[str, Place], doubtful: frozenset[str]) -> list[Fault]:
    """The rules that `job` breaks with values that are all as they were meant."""
    reasons = reasons_of(job) if job is not None else ()
    return [
        _fault(reason, places)
        for reason in reasons
        if not any(is_doubtful(doubtful, path) for path in reason.paths)
    ]


def _fault(reason: Reason, places: Mapping[str, Place]) -> Fault:
    """`reason` at the first of its paths that is in the file."""
    path = next((path for path in reason.paths if path in places), reason.paths[0])
    return Fault(path, reason.message, reason.allowed, reason.fix, places.get(path))


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """`faults` by place, those of options last."""
    return tuple(sorted(faults, key=_order))


def _order(fault: Fault) -> tuple[bool, int, int]:
    place = fault.place
    if place is None:
        return (False, 0, 0)
    return (place.line == 0, place.line, place.column)
