"""How an estimate is shown: verdict, stages, what would make it fit, and where each byte comes from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partrain.cli import render
from partrain.cost.accuracy import error_words
from partrain.cost.constants import CONSTANTS
from partrain.cost.estimate import Estimate, StageEstimate, Term
from partrain.plan.memory import Verdict, plan_memory, verdict_of
from partrain.plan.plan import Plan
from partrain.spec.hardware import BY_HAND
from partrain.units import format_bytes, format_count

if TYPE_CHECKING:
    from partrain.plan.advise import Fix

_MOST_STAGES_SHOWN = 24
"""More are cut in the middle; the verdict names the worst, and --json has all."""

_MOST_RATIO = 1000
"""A fitted number above it is of bytes."""


@dataclass(frozen=True)
class Found:
    """An estimate, and what is to be said of it."""

    plan: Plan
    memory: Estimate
    verdict: Verdict
    fixes: Sequence[Fix]

    @classmethod
    def of(cls, plan: Plan, fixes: Callable[[], Sequence[Fix]]) -> Found:
        """That of `plan`; `fixes` are looked for where it does not fit."""
        memory = plan_memory(plan)
        verdict = verdict_of(plan, memory)
        return cls(plan, memory, verdict, fixes() if verdict.fits is False else ())


def document(found: Found, *, explain: bool = False) -> dict[str, Any]:
    """What `partrain estimate --json` prints."""
    memory, verdict = found.memory, found.verdict
    return {
        "fits": verdict.fits,
        "budget_bytes": verdict.budget_bytes,
        "peak_bytes": memory.peak_bytes,
        "device_bytes": verdict.needed_bytes,
        "stages": [_stage_object(stage, explain=explain) for stage in memory.stages],
        "host_bytes": memory.host_bytes,
        "checkpoint_bytes": memory.checkpoint_bytes,
        "assumptions": [*memory.assumptions, f"error seen: {error_words()}"],
        "fixes": [_fix_object(fix) for fix in found.fixes],
    }


def _stage_object(stage: StageEstimate, *, explain: bool) -> dict[str, Any]:
    explained = {"moments": [asdict(moment) for moment in stage.moments]} if explain else {}
    return {
        "stage": stage.stage,
        "layers": [stage.first, stage.last],
        "parameters": stage.parameters,
        "peak_bytes": stage.peak_bytes,
        "reserved_bytes": stage.reserved_bytes,
        "device_bytes": stage.device_bytes,
        "replicated_bytes": stage.replicated_bytes,
        "moment": stage.worst.name,
        "terms": dict(stage.worst.by_name),
        **explained,
    }


def _fix_object(fix: Fix) -> dict[str, Any]:
    return {
        "set": dict(fix.changes),
        "lines": lines_of(fix.changes),
        "peak_bytes": fix.memory.peak_bytes,
        "device_bytes": fix.verdict.needed_bytes,
        "host_bytes": fix.memory.host_bytes,
        "devices": fix.plan.layout.world_size,
        "slower": round(fix.slower, 3),
        "costs": list(fix.costs),
    }


def lines_of(changes: Mapping[str, Any]) -> list[str]:
    """Changes as lines of a job file.

    >>> lines_of({"training.recompute": "full", "parallel.tp": 4, "parallel.pp": 1})
    ['training:', '  recompute: full', 'parallel:', '  tp: 4', '  pp: 1']
    """
    lines: list[str] = []
    for path, value in changes.items():
        section, _, key = path.rpartition(".")
        lines += [] if f"{section}:" in lines else [f"{section}:"]
        lines.append(f"  {key}: {render.yaml_value(value)}")
    return lines


def show(found: Found, *, explain: bool, hint: str) -> None:
    """All of it for a person; `hint` says how a fix gets into the job."""
    show_verdict(found)
    render.say()
    _show_stages(found)
    render.say()
    render.pairs(_facts(found))
    if explain:
        _show_terms(found)
    if found.verdict.fits is False:
        show_fixes(found, hint=hint)


def show_verdict(found: Found) -> None:
    """Whether it fits, on which ranks, by how much."""
    verdict = found.verdict
    needed = format_bytes(verdict.needed_bytes)
    if verdict.fits is None:
        why = "how much memory the device has is not known"
        give = "" if verdict.is_shared else f"; hardware: {{{BY_HAND}}} gives it by hand"
        render.verdict("not known", f"{_who(found)} {needed}, and {why}{give}")
        return
    budget, apart = format_bytes(verdict.budget_bytes or 0), format_bytes(abs(verdict.over_bytes))
    of = f"({verdict.share:.0%} of the {format_bytes(verdict.memory_bytes or 0)} of {_where(found)})"
    if verdict.fits:
        render.verdict("fits", f"{_who(found)} {needed} of {budget} {of}: {apart} to spare")
    else:
        render.verdict("does not fit", f"{_who(found)} {needed}, {apart} more than {budget} {of}")


def _who(found: Found) -> str:
    layout = found.plan.layout
    if found.verdict.is_shared:
        ranks = layout.world_size
        return f"all {ranks} ranks together need" if ranks > 1 else "its rank needs"
    each, stage = layout.dp * layout.tp, found.verdict.stage
    first, last = stage * each, (stage + 1) * each - 1
    ranks_words = f"ranks {first}-{last} need" if each > 1 else f"rank {first} needs"
    return f"stage {stage}, {ranks_words}" if layout.pp > 1 else ranks_words


def _where(found: Found) -> str:
    machine = found.plan.machine
    return "this machine, which all ranks share" if found.verdict.is_shared else f"each {machine.name}"


def _show_stages(found: Found) -> None:
    """A line a stage."""
    has_replicas = found.plan.layout.dp > 1
    header = ["stage", "layers", "params", "peak", "at", *(["alike"] if has_replicas else [])]
    rows = [_cells(found, stage, has_replicas=has_replicas) for stage in found.memory.stages]
    half = _MOST_STAGES_SHOWN // 2
    if len(rows) > _MOST_STAGES_SHOWN:
        dots = ["..."] * len(header)
        shares: list[float | None] = [_share(found, stage) for stage in found.memory.stages]
        rows, shares = [*rows[:half], dots, *rows[-half:]], [*shares[:half], None, *shares[-half:]]
    else:
        shares = [_share(found, stage) for stage in found.memory.stages]
    right = ("stage", "params", "peak", "alike")
    render.bars(header, rows, shares, right=right, of="of the budget")


def _cells(found: Found, stage: StageEstimate, *, has_replicas: bool) -> list[str]:
    last = found.memory.stages[-1].last
    cells = [
        str(stage.stage),
        _layers(stage, last),
        format_count(stage.parameters),
        format_bytes(stage.peak_bytes),
        stage.worst.name,
    ]
    return [*cells, *([format_bytes(stage.replicated_bytes)] if has_replicas else [])]


def _layers(stage: StageEstimate, last: int) -> str:
    """The layers of a stage in few letters; 1 is the first block."""
    first_block, last_block = max(stage.first, 1), min(stage.last, last - 1)
    blocks = f"{first_block}-{last_block}" if first_block < last_block else str(first_block)
    parts = (
        "embedding" if stage.first == 0 else "",
        blocks if first_block <= last_block else "",
        "head" if stage.last == last else "",
    )
    return ", ".join(part for part in parts if part)


def _share(found: Found, stage: StageEstimate) -> float | None:
    """Part of the budget that a rank takes; on CPUs the stage's ranks together."""
    budget, layout = found.verdict.budget_bytes, found.plan.layout
    if not budget:
        return None
    ranks = layout.dp * layout.tp if found.verdict.is_shared else 1
    return stage.device_bytes * ranks / budget


def _facts(found: Found) -> dict[str, str]:
    """What is said below the stages."""
    memory, layout, worst = found.memory, found.plan.layout, found.memory.worst
    rows: dict[str, str] = {}
    if layout.dp > 1:
        held = "hold the same of, which a higher ZeRO stage shares out"
        rows["alike"] = f"bytes of model states that all {layout.dp} replicas {held}"
    if not found.verdict.is_shared:
        rows["device"] = (
            f"{format_bytes(worst.device_bytes)} on stage {worst.stage}: {format_bytes(worst.peak_bytes)}"
            f" allocated, {format_bytes(worst.reserve_bytes)} the allocator's reserve,"
            f" {format_bytes(worst.outside_bytes)} context and communicators"
        )
    if memory.host_bytes and not found.verdict.is_shared:
        rows["host"] = (
            f"{format_bytes(memory.host_bytes)} a machine, beside what its processes take themselves"
        )
    rows["checkpoint"] = f"{format_bytes(memory.checkpoint_bytes)} on disk, weights and optimizer states once"
    rows["assumed"] = "; ".join(memory.assumptions)
    rows["error seen"] = error_words()
    return rows


def apply_hint(job: Path, overrides: Sequence[str] | None) -> str:
    """How a fix gets into the job: by a command, where nothing on the command line is in its way."""
    return "lines for the job" if overrides else f"partrain estimate {shlex.quote(str(job))} --apply N"


def show_fixes(found: Found, *, hint: str) -> None:
    """The changes that make it fit, each with its peak and its price."""
    render.say()
    if not found.fixes:
        render.say("none of the changes that were tried makes it fit")
        return
    render.say(("what makes it fit", "bold"), (f"  ({hint})", "dim"))
    for number, fix in enumerate(found.fixes, 1):
        size = format_bytes(fix.verdict.needed_bytes)
        render.item(
            (f"{number}  {size.rjust(9)}  ", "bold"), "; ".join(fix.costs) or "costs nothing that is noticed"
        )
        render.say_text("\n".join(lines_of(fix.changes)), indent=" " * 5)


def show_refusal(found: Found, *, job: Path) -> None:
    """Why the job or plan in `job` is not launched."""
    show_verdict(found)
    if found.fixes:
        show_fixes(found, hint=f"partrain estimate {shlex.quote(str(job))}")
    render.say()
    render.say("`partrain estimate` says more; --over-budget starts it all the same")


def show_applied(fix: Fix, job: Path) -> None:
    """That the job has been changed."""
    render.say(f"written into {job}:")
    render.say_text("\n".join(lines_of(fix.changes)), indent="  ")
    render.say()


def _show_terms(found: Found) -> None:
    """Every moment of every stage, and the terms of the worst."""
    sources: list[str] = []
    for stage in found.memory.stages:
        render.say()
        render.say((f"stage {stage.stage}: {_layers(stage, found.memory.stages[-1].last)}", "bold"))
        rows = [(format_bytes(m.bytes), m.name, m.at) for m in stage.moments]
        render.table(("bytes", "moment", "worst operator"), rows, right=("bytes",))
        render.say()
        render.say(f"at {stage.worst.name}:")
        for term in stage.worst.terms:
            _show_term(term, sources)
    if found.memory.host:
        render.say()
        render.say(("host", "bold"))
        for term in found.memory.host:
            _show_term(term, sources)
    render.say()
    for number, source in enumerate(sources, 1):
        render.item(f"[{number}] ", source)
    render.say()
    render.say(("fitted numbers", "bold"))
    for constant in CONSTANTS:
        value = format_bytes(constant.value) if constant.value > _MOST_RATIO else f"{constant.value:g}"
        render.item(f"{value.rjust(10)}  ", f"{constant.name}: {constant.source}")


def _show_term(term: Term, sources: list[str]) -> None:
    """A term in a line; its source joins `sources` unless it is among them."""
    if term.source and term.source not in sources:
        sources.append(term.source)
    source = f" [{sources.index(term.source) + 1}]" if term.source else ""
    render.item(f"{format_bytes(term.bytes).rjust(10)}  ", f"{term.name}: {term.formula}{source}")
