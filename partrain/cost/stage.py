"""One rank of a stage at each moment of a step: model states by the wrapper's law, activations by walking
the layers at the deepest fill of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from partrain.cost.estimate import WAITING, Moment, Term
from partrain.cost.laws import Law, Phase, Row
from partrain.cost.walk import Peak, Walk, walk
from partrain.model.tape import Tape
from partrain.units import format_bytes

Layers = tuple[tuple[Tape, int], ...]
"""Tapes in order, each with how many alike follow one another."""


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """All that decides a rank's memory."""

    layers: Layers
    law: Law
    quantities: Mapping[str, int]
    fill: int
    """Micro-batches in flight at most: min(stages - stage, micro-batches)."""
    num_micro_batches: int
    always: tuple[Term, ...] = ()
    """What is there from the first step on, whatever happens."""
    on_host: bool = False
    """Whether the device's memory is the host's, so that what is offloaded stays in it."""
    each: tuple[Term, ...] = ()
    """Of every micro-batch in flight, beside what the layers keep."""
    arriving: int = 0
    """Bytes of the gradient of the last layer's output that are part of `always`."""
    replaced: int = 0
    """Bytes of `lingering` that the last layer's output takes the place of, forward."""
    lingering: tuple[Term, ...] = ()
    """What the engine still refers to of micro-batches that are done, forward and backward too."""


@dataclass(frozen=True)
class Place:
    """Where in a stage a pass is, and what is alive of its micro-batch there."""

    layer: str
    before: int
    """Bytes that the layers before this one keep."""
    peak: Peak
    grown: int = 0
    """Bytes of the gradients that the layers after this one have made of their weights."""

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.before + self.peak.bytes + self.grown


def held(layers: Layers) -> int:
    """Bytes that all layers keep of a micro-batch."""
    return sum(walk(tape).held * count for tape, count in layers)


def _places(layers: Layers, of: Callable[[Walk], Peak], *, growing: bool = False) -> Iterator[Place]:
    """The first and the last of each run of layers that are alike: all between lies between these."""
    before, after = 0, sum(tape.weight * count for tape, count in layers)
    for tape, count in layers:
        walked = walk(tape)
        for index in sorted({0, count - 1}):
            later = (after - tape.weight * (index + 1)) if growing else 0
            yield Place(tape.name, before + index * walked.held, of(walked), later)
        before, after = before + count * walked.held, after - count * tape.weight


def forward_place(layers: Layers, *, keeping: bool = True, replaced: int = 0) -> Place:
    """The worst place forward; without `keeping` no layer keeps anything."""
    alone = (Place(tape.name, 0, walk(tape).silent) for tape, _ in layers)
    *places, last = _places(layers, lambda walked: walked.forward) if keeping else alone
    peak = replace(last.peak, kept=max(last.peak.kept - replaced, 0))
    return max((*places, replace(last, peak=peak)), key=lambda place: place.bytes)


def backward_place(layers: Layers, *, growing: bool, arriving: int = 0) -> Place:
    """The worst place backward; the gradient of the last layer's output has a buffer of `arriving` bytes."""
    *places, last = _places(
        layers, lambda walked: walked.growing if growing else walked.backward, growing=growing
    )
    peak = replace(last.peak, gradients=max(last.peak.gradients - arriving, 0))
    return max((*places, replace(last, peak=peak)), key=lambda place: place.bytes)


def moments(work: StageWork) -> tuple[Moment, ...]:
    """Every moment of a step."""
    return tuple(_moments(work))


def _moments(work: StageWork) -> Iterator[Moment]:
    yield Moment("construction", _states(work, "construction"))
    deeper, later = work.fill, min(work.fill, work.num_micro_batches - 1)
    yield _pass(work, "first forward", deeper, forward_place(work.layers, replaced=work.replaced))
    place = backward_place(work.layers, growing=work.law.gradients_stay, arriving=work.arriving)
    yield _pass(work, "first backward", deeper, place)
    if later:
        if work.num_micro_batches > work.fill:
            yield _pass(work, "forward", deeper, forward_place(work.layers, replaced=work.replaced))
        place = backward_place(work.layers, growing=False, arriving=work.arriving)
        yield _pass(work, "backward", later, place)
    waiting = _in_flight(work, work.fill - 1)
    yield Moment("accumulation", (*_states(work, "accumulation"), *waiting, *work.always, *work.lingering))
    for phase in ("reduction", "norm", "step", "gather", "checkpoint"):
        yield Moment(phase, (*_states(work, phase), *work.always, *work.lingering))
    place = forward_place(work.layers, keeping=False)
    walked = _walked(work, place)
    yield Moment("evaluation", (*_states(work, "evaluation"), *walked, *work.always), place.peak.operator)


def _pass(work: StageWork, phase: Phase, fill: int, place: Place) -> Moment:
    terms = (*_states(work, phase), *_in_flight(work, fill - 1), *_walked(work, place), *work.always,
             *work.lingering)  # fmt: skip
    return Moment(phase, terms, f"{place.layer}: {place.peak.operator}")


def _states(work: StageWork, phase: Phase) -> tuple[Term, ...]:
    """The rows of the law at `phase`."""
    here = (row for row in work.law.rows if work.on_host or not row.on_host)
    rows = [row for row in here if phase in row.when]
    return tuple(term_of(row, work) for row in rows if work.quantities[row.of])


def term_of(row: Row, work: StageWork) -> Term:
    """A row with its numbers."""
    count = work.quantities[row.of]
    formula = f"{row.each} bytes x {count:,} ({row.of})"
    return Term(row.name, row.each * count, formula, f"{work.law.name}: {work.law.source}")


def _in_flight(work: StageWork, others: int) -> tuple[Term, ...]:
    kept = held(work.layers)
    if not others:
        return ()
    waiting = Term(
        f"activations {WAITING}",
        others * kept,
        f"{others} x {format_bytes(kept)} that the layers keep of one",
    )
    beside = (
        Term(
            f"{term.name} {WAITING}",
            others * term.bytes,
            f"{others} x {term.formula}",
            term.source,
        )
        for term in work.each
    )
    return (waiting, *beside)


def _walked(work: StageWork, place: Place) -> tuple[Term, ...]:
    peak = place.peak
    terms = (
        Term(
            "activations of this micro-batch",
            place.before + peak.kept,
            f"{format_bytes(place.before)} of layers before, {format_bytes(peak.kept)} of `{place.layer}`",
        ),
        Term("gradients of activations", peak.gradients, f"at {peak.operator}"),
        Term("temporaries", peak.work, f"at {peak.operator}"),
        Term("gradients of weights", place.grown + peak.grown, "made by the layers after this one and by it"),
    )
    return (*(term for term in terms if term.bytes), *work.each)
