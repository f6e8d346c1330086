"""Plays a tape forward and backward and says how many bytes are alive at the worst operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from partrain.model.tape import INPUT, Op, Tape, last_reads, owners, sizes


@dataclass(frozen=True)
class Peak:
    """The worst operator of a pass: bytes alive there beside what was alive before it."""

    operator: str = ""
    kept: int = 0
    """Bytes of activations that wait for their backward pass or are in use."""
    gradients: int = 0
    """Bytes of gradients of activations."""
    work: int = 0
    """Bytes of temporaries, gradients of the operator's own weights among them."""
    grown: int = 0
    """Bytes of gradients of weights that the layer's backward pass has made by then, to stay."""

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.kept + self.gradients + self.work + self.grown


@dataclass(frozen=True)
class Walk:
    """What a layer takes."""

    held: int
    """Bytes kept between the passes, its input among them where it is kept."""
    forward: Peak
    """Its input among it, here and below."""
    backward: Peak
    """Gradients of weights are added to ones that exist."""
    growing: Peak
    """The same where gradients of weights are made for the first time, to stay."""
    silent: Peak
    """Forward without gradients, as in an evaluation."""


@dataclass
class _Storages:
    """Live storages by name, each with the number of its holders."""

    sizes: dict[str, int] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def hold(self, name: str, size: int = 0) -> None:
        if not self.holders.get(name):
            self.sizes.setdefault(name, size)
            self.total += self.sizes[name]
        self.holders[name] = self.holders.get(name, 0) + 1

    def drop(self, name: str) -> None:
        self.holders[name] -= 1
        if not self.holders[name]:
            self.total -= self.sizes[name]


@lru_cache(maxsize=1024)
def walk(tape: Tape) -> Walk:
    """Both passes of `tape`."""
    silent, _ = _forward(tape, keeping=False)
    forward, kept = _forward(tape, keeping=True)
    backward, growing = (_backward(tape, growing=growing) for growing in (False, True))
    if not tape.recompute:
        return Walk(kept.total, forward, backward, growing, silent)
    again = Peak(f"{forward.operator}, again", forward.kept, tape.output_size, forward.work)
    return Walk(tape.input_size, silent, worse(again, backward), worse(again, growing), silent)


def worse(first: Peak, second: Peak) -> Peak:
    """The one with more bytes."""
    return first if first.bytes > second.bytes else second


def _forward(tape: Tape, *, keeping: bool) -> tuple[Peak, _Storages]:
    """The worst operator forward, and what is held after it: what autograd keeps, when `keeping`."""
    owner, last, live = owners(tape), last_reads(tape.ops), _Storages()
    live.hold(INPUT, tape.input_size)  # the caller's own
    live.hold(INPUT)
    worst = Peak()
    for index, op in enumerate(tape.ops):
        live.hold(owner[op.makes], op.size)
        made = 0 if op.ready and not keeping else op.extra
        live.total += made
        worst = worse(worst, Peak(op.name, live.total, 0, op.forward_work))
        live.total -= 0 if keeping else made
        for name in op.keeps if keeping else ():
            live.hold(owner[name])
        for name in dict.fromkeys(op.reads):
            if last[name] == index and name not in tape.held:
                live.drop(owner[name])
    for name in (*tape.held, tape.ops[-1].makes, INPUT):
        live.drop(owner[name])
    return worst, live


def _backward(tape: Tape, *, growing: bool) -> Peak:
    """The worst operator backward, from a gradient of the output to one of the input."""
    owner, size = owners(tape), sizes(tape)
    _, kept = _forward(tape, keeping=True)
    if tape.recompute:
        kept.hold(INPUT)
    gradients, of = _Storages(), {tape.ops[-1].makes: "output"}
    gradients.hold("output", tape.output_size)
    grown, worst = 0, Peak()
    for op in reversed(tape.ops):
        incoming, joined = of.pop(op.makes), []
        kept.total -= sum(size[name] for name in op.reads) if op.ready else 0
        for name in op.reads:
            if name in op.constant:
                continue
            made = incoming if name in op.passes else f"{op.name}:{name}"
            gradients.hold(made, size[name])
            if name in of:
                joined.append(made)
            of.setdefault(name, made)
        work = op.backward_work + (0 if op.ready else op.weight)
        worst = worse(worst, Peak(op.name, kept.total, gradients.total, work, grown))
        grown += op.weight if growing else 0
        for made in (*joined, incoming):
            gradients.drop(made)
        _release(kept, op, owner, size)
    return worst


def _release(kept: _Storages, op: Op, owner: dict[str, str], size: dict[str, int]) -> None:
    """What autograd held for `op` is free."""
    kept.total -= op.extra - (sum(size[name] for name in op.reads) if op.ready else 0)
    for name in op.keeps:
        kept.drop(owner[name])
