"""How far predictions are from rows: the tables, and the document for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

from bench.memory_model.peers import PEERS
from bench.memory_model.predict import Prediction, predict, reserve_of, values
from bench.memory_model.rows import GIB, Row, Unusable
from partrain.cost.constants import HOLES, OUTSIDE_OF_2021

ALLOCATED = ("peak_allocated", "states_allocated", "fwd_peak")
KNOBS = (
    "seq", "micro_batch", "dp", "tp", "pp", "cp", "ep", "zero_stage", "recompute_std", "layers", "hidden",
    "stage", "vpp", "precision", "optimizer_bytes", "sequence_parallel", "model",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A row and what is predicted of it."""

    prediction: Prediction
    predicted: int

    @property
    def row(self) -> Row:
        return self.prediction.row

    @property
    def error(self) -> float:
        """Signed, part of what was measured."""
        return self.predicted / self.row.measured - 1


def judge(rows: Iterable[Row]) -> tuple[list[Judged], list[tuple[str, str]]]:
    """Rows with predictions, and ids of the others with the reason."""
    judged, left_out = [], []
    for row in rows:
        try:
            found = predict(row)
            judged.append(Judged(found, found.bytes(values())))
        except Unusable as error:
            left_out.append((row.id, str(error)))
    return judged, left_out


def refitted(judged: Sequence[Judged], without: str) -> dict[str, float]:
    """The fitted constants, fitted anew on the rows of every source but `without`.

    Each is the mean of what its rows ask for: shares of the reserve of rows with nothing waiting, then the
    holes of rows where something waits, then what lies outside of the allocator.
    """
    others = [item for item in judged if item.row.source != without]
    reserved = [item for item in others if item.row["quantity"] == "peak_reserved"]
    asked: dict[str, list[float]] = {}
    for item in (item for item in reserved if not item.prediction.moment.waiting):
        share = item.row.measured / item.prediction.allocated - 1
        asked.setdefault(reserve_of(item.row).name, []).append(share)
    found = {**values(), **{name: mean(several) for name, several in asked.items()}}
    holes: list[float] = [
        (item.row.measured - (1 + found[reserve_of(item.row).name]) * item.prediction.allocated)
        / item.prediction.moment.waiting
        for item in reserved
        if item.prediction.moment.waiting
    ]
    outside: list[float] = [
        item.row.measured - item.prediction.allocated - item.prediction.fixed
        for item in others
        if item.row["quantity"] == "device_used"
    ]
    fits: dict[str, list[float]] = {HOLES.name: holes, OUTSIDE_OF_2021.name: outside}
    return {**found, **{name: mean(several) for name, several in fits.items() if several}}


def one_knob_pairs(judged: Sequence[Judged]) -> list[tuple[Judged, Judged]]:
    """Rows of one source and quantity that differ in one column of their layout, measured 1 % apart."""
    alike = ("source", "quantity", "hardware")
    found = []
    for first, second in combinations(judged, 2):
        if any(first.row[name] != second.row[name] for name in alike):
            continue
        differ = [name for name in KNOBS if first.row[name] != second.row[name]]
        apart = abs(first.row.measured / second.row.measured - 1)
        if len(differ) == 1 and apart >= 0.01:
            found.append((first, second))
    return found


def is_ordered(pair: tuple[Judged, Judged]) -> bool:
    """Whether the estimates stand to one another as the measurements do."""
    first, second = pair
    return (first.row.measured < second.row.measured) == (first.predicted < second.predicted)


def said(name: str, errors: Sequence[float]) -> str:
    """One line of the table."""
    worst = max(errors, key=abs)
    size = mean(abs(error) for error in errors)
    return f"{name:44} {len(errors):5} {size:8.2%} {mean(errors):+9.2%} {worst:+9.2%} {min(errors):+9.2%}"


HEADER = f"{'':44} {'rows':>5} {'mean':>8} {'signed':>9} {'worst':>9} {'most under':>10}"


def grouped(judged: Sequence[Judged], key: Callable[[Row], str]) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for item in judged:
        groups.setdefault(key(item.row), []).append(item)
    return dict(sorted(groups.items()))


def report(judged: Sequence[Judged], left_out: Sequence[tuple[str, str]]) -> Iterable[str]:
    """The tables, line by line."""
    yield HEADER
    for name, items in grouped(
        judged, lambda row: f"{row.source} {row['reliability']} {row['quantity']}"
    ).items():
        yield said(name, [item.error for item in items])
    yield ""
    yield from bounds(judged)
    yield ""
    yield "other estimators, on allocated peaks"
    yield from others(judged)
    yield ""
    yield "fitted constants without each source, and the error on it"
    for source, items in grouped(judged, lambda row: row.source).items():
        constants = refitted(judged, source)
        errors = [item.prediction.bytes(constants) / item.row.measured - 1 for item in items]
        yield said(source, errors)
    yield ""
    yield "worst rows"
    for item in sorted(judged, key=lambda item: -abs(item.error))[:15]:
        measured, predicted = item.row.measured / GIB, item.predicted / GIB
        at = f"{item.prediction.moment.name} {item.prediction.moment.at}"
        yield f"  {item.row.id:14} {measured:8.3f} GiB measured {predicted:8.3f} {item.error:+8.2%}  {at}"
    yield ""
    yield f"left out: {len(left_out)}"
    for name, reason in left_out:
        yield f"  {name}: {reason}"


def bounds(judged: Sequence[Judged]) -> Iterable[str]:
    """What the estimate is held to."""
    allocated = [item for item in judged if item.row["quantity"] in ALLOCATED]
    deepspeed = [item for item in allocated if item.row.source in ("dsbf16", "bsds3d", "bsz3")]
    simumax = [item for item in allocated if item.row.source == "simumax"]
    others = [item for item in allocated if item not in deepspeed and item not in simumax]
    kinds: Mapping[str, Sequence[Judged]] = {
        "DeepSpeed rows (a), allocated": [item for item in deepspeed if item.row["reliability"] == "a"],
        "SimuMax rows, allocated": simumax,
        "all other allocated rows (a and b)": [item for item in others if item.row["reliability"] in "ab"],
        "all a-rows, allocated": [item for item in allocated if item.row["reliability"] == "a"],
        "reserved": [item for item in judged if item.row["quantity"] == "peak_reserved"],
        "nvidia-smi": [item for item in judged if item.row["quantity"] == "device_used"],
    }
    for name, items in kinds.items():
        if items:
            yield said(name, [item.error for item in items])
    if kinds["nvidia-smi"]:
        near = [near_enough(item) for item in kinds["nvidia-smi"]]
        yield f"nvidia-smi rows within 1.5 GiB or 5 %: {sum(near)} of {len(near)} ({mean(near):.0%})"
    pairs = one_knob_pairs(judged)
    if pairs:
        right = sum(is_ordered(pair) for pair in pairs)
        share = f"{right} of {len(pairs)} ({right / len(pairs):.1%})"
        yield f"pairs that differ in one knob, in the right order: {share}"


def near_enough(item: Judged) -> bool:
    """Within 1.5 GiB or 5 %."""
    return abs(item.predicted - item.row.measured) <= max(1.5 * GIB, 0.05 * item.row.measured)


def others(judged: Sequence[Judged]) -> Iterable[str]:
    """The other estimators, and ours on the same rows."""
    peaks = [item for item in judged if item.row["quantity"] == "peak_allocated"]
    for name, formula in PEERS.items():
        theirs, ours = [], []
        for item in peaks:
            try:
                theirs.append(formula(item.row) / item.row.measured - 1)
            except Unusable:
                continue
            ours.append(item.error)
        if theirs:
            yield said(name, theirs)
            yield said("  this estimate, same rows", ours)


def as_json(judged: Sequence[Judged], left_out: Sequence[tuple[str, str]]) -> str:
    """The document for programs."""
    rows = [
        {
            "id": item.row.id,
            "source": item.row.source,
            "reliability": item.row["reliability"],
            "quantity": item.row["quantity"],
            "measured_bytes": item.row.measured,
            "predicted_bytes": item.predicted,
        }
        for item in judged
    ]
    return json.dumps(
        {"rows": rows, "left_out": [{"id": name, "reason": why} for name, why in left_out]}, indent=1
    )
