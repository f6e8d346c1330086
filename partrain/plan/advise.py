"""The cheapest changes that make a job fit, each with its predicted peak and what it costs.

A change is tried on the job itself: it is decided anew with all its rules and its memory estimated, so a fix
that is offered is legal and fits by the estimate. Changes are tried in the order of their price; more devices
come after all that needs none, another training (shorter sequences) comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice, product
from typing import Any

from partrain.cost.estimate import Estimate
from partrain.errors import FaultsError
from partrain.layout.layout import Layout
from partrain.layout.rules import OFFLOADS, reasons
from partrain.model.shape import parameters
from partrain.plan.choose import AUTO_LOSS_CHUNK_SIZE
from partrain.plan.decide import decide, largest_stage, stage_bounds
from partrain.plan.ds_config import deepspeed_config
from partrain.plan.memory import Verdict, judged, memory_of, plan_memory, state_bytes, verdict_of
from partrain.plan.plan import Plan
from partrain.plan.price import SLOWER_BY, price, ranks_and_tokens, relative_price
from partrain.plan.setting import (
    PATHS,
    Setting,
    changed_job,
    differences,
    proposed,
    setting_of,
)
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.load import Reading
from partrain.spec.numbers import divisors
from partrain.spec.training import Recompute
from partrain.units import format_bytes

MOST_FIXES = 5
MOST_MOVES = 3
"""Changes that a fix combines; degrees that change together count as one."""

MOST_STAGES = 1000
"""Pipeline stages whose memory is estimated for single moves, for pairs and for triples each: a second."""

WORTH_A_CHANGE = 0.02
"""Part of the time that a fix may cost more if it changes one value less: so much is a shorter list worth."""

SHORTEST_SEQUENCE = 128
"""Tokens below which a shorter sequence is no answer."""

MOST_HOST_BYTES = 2 * 2**40
"""The most host memory that is asked of a machine: a DGX H100 has 2 TB (NVIDIA, DGX H100 datasheet)."""

NOTICEABLE = 0.01
"""Part of a step below which a difference in time is not told."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """Changes of a job with which it fits."""

    changes: Mapping[str, Any]
    """Key path -> value."""
    plan: Plan
    """With them."""
    memory: Estimate
    slower: float
    """Device time a token over that before, less 1; below 0 it is faster. Roughly."""
    costs: tuple[str, ...]
    """What it costs, in words; empty: nothing that is noticed."""

    @property
    def verdict(self) -> Verdict:
        """It fits."""
        return verdict_of(self.plan, self.memory)


@dataclass(frozen=True)
class Facts:
    """What others found out, as `decide` is given it."""

    machine: MachineFacts
    data: DatasetFacts
    validation: DatasetFacts | None = None


def advise(reading: Reading, plan: Plan, facts: Facts) -> tuple[Fix, ...]:
    """The cheapest fixes of the job `reading`, which `plan` decides by `facts`; empty when it fits, or when
    nothing that is tried would make it fit."""
    if verdict_of(plan, plan_memory(plan)).fits is not False:
        return ()
    assert reading.job is not None
    found = (
        _fix(setting, reading, plan, facts) for setting in _Search(plan, reading.job.deepspeed).fitting()
    )
    fixes = tuple(islice((fix for fix in found if fix is not None), MOST_FIXES))
    here = tuple(fix for fix in fixes if fix.plan.nodes == plan.nodes)
    return here if plan.nodes == 1 and here else fixes  # one machine is what `launch` starts


def _fix(setting: Setting, reading: Reading, plan: Plan, facts: Facts) -> Fix | None:
    """The fix that brings the job to this setting; None: as a job it is refused, or does not fit."""
    before = setting_of(plan)
    changes = differences(before, setting)
    decided = _decided(reading, changes, facts)
    if decided is not None and not _fits(decided):
        # What is `auto` in the job has followed what is changed: it is given its value too.
        changes = {**changes, **differences(setting_of(decided), setting)}
        decided = _decided(reading, changes, facts)
    if decided is None or not _fits(decided):
        return None
    after, memory = setting_of(decided), plan_memory(decided)
    slower = relative_price(before, after, plan) - 1
    costs = (*_time_words(before, after, plan), *_other_costs(after, plan, memory))
    return Fix(changes=changes, plan=decided, memory=memory, slower=slower, costs=costs)


def _decided(reading: Reading, changes: Mapping[str, Any], facts: Facts) -> Plan | None:
    """The plan of the job with `changes`; None: it is refused."""
    assert reading.job is not None
    try:
        changed = replace(reading, job=changed_job(reading.job, changes))
        return decide(changed, machine=facts.machine, data=facts.data, validation=facts.validation)
    except FaultsError:
        return None


def _fits(plan: Plan) -> bool:
    return verdict_of(plan, plan_memory(plan)).fits is True


def _time_words(before: Setting, after: Setting, plan: Plan) -> Iterator[str]:
    slower = relative_price(before, after, plan) - 1
    if slower < NOTICEABLE:
        return  # that it is faster is more than so rough a price can promise
    old, new = price(before, plan), price(after, plan)
    scale = ranks_and_tokens(before, plan) / ranks_and_tokens(after, plan)
    grown = {name: getattr(new, name) / scale - getattr(old, name) for name in SLOWER_BY}
    most = max(grown, key=lambda name: grown[name])
    yield f"about {slower:.0%} slower: {SLOWER_BY[most]}"


def _other_costs(after: Setting, plan: Plan, memory: Estimate) -> Iterator[str]:
    before = setting_of(plan)
    more = after.world_size - before.world_size
    if more > 0:
        yield f"{more} more device{'s' if more > 1 else ''}"
    if after.nodes > before.nodes:
        alone = "; this version launches on one" if before.nodes == 1 else ""
        yield f"{after.nodes} machines instead of {before.nodes}{alone}"
    if plan.machine.device != "cpu" and memory.host_bytes > plan_memory(plan).host_bytes:
        yield f"{format_bytes(memory.host_bytes)} of host memory a machine"
    if after.sequence_length != before.sequence_length:
        yield f"another training: sequences of {after.sequence_length} tokens"


@dataclass(frozen=True)
class _Search:
    """All that may be tried for a plan."""

    plan: Plan
    raw: Mapping[str, Any]
    """The job's own engine keys."""
    orders: dict[Setting, tuple[Any, ...]] = field(default_factory=dict)
    """Asked for again and again."""

    @cached_property
    def before(self) -> Setting:
        """The plan's own setting."""
        return setting_of(self.plan)

    def fitting(self) -> list[Setting]:
        """Settings that fit by the estimate, the cheapest first, each another kind of change.

        Single moves are tried before pairs and those before triples, each as far as the limit allows, so that
        no plain fix is missed for the many combinations that are cheaper and do not fit.
        """
        found: list[Setting] = []
        for number in range(1, MOST_MOVES + 1):
            left = MOST_STAGES
            for setting in sorted(self.candidates(number), key=self.order):
                if left <= 0 or self.is_full(found, setting):
                    break
                if self.is_covered(setting, found) or not self.may_fit(setting):
                    continue
                left -= len(self.stages(setting.pp))
                if self.fits(setting):
                    found.append(setting)
        return sorted(found, key=self.order)

    def is_full(self, found: list[Setting], setting: Setting) -> bool:
        """Whether as many as are shown have been found, all cheaper."""
        return sum(self.order(other) <= self.order(setting) for other in found) >= MOST_FIXES

    def is_covered(self, setting: Setting, found: list[Setting]) -> bool:
        """Whether one of those `found` changes no more than a part of this, and is cheaper."""
        kinds, order = _kinds(self.before, setting), self.order(setting)
        return any(_kinds(self.before, other) <= kinds and self.order(other) <= order for other in found)

    def order(self, setting: Setting) -> tuple[Any, ...]:
        """The cheapest first."""
        if setting not in self.orders:
            self.orders[setting] = self._order(setting)
        return self.orders[setting]

    def _order(self, setting: Setting) -> tuple[Any, ...]:
        before, changes = self.before, differences(self.before, setting)
        shorter = before.sequence_length - setting.sequence_length
        ranks = max(setting.world_size, before.world_size)
        slower = relative_price(before, setting, self.plan) + WORTH_A_CHANGE * len(changes)
        return (shorter, setting.nodes, ranks, slower, str(changes))

    def candidates(self, number: int) -> set[Setting]:
        """Every legal combination of so many moves."""
        found = {
            replace(self.before, **{key: value for move in moves for key, value in move.items()})
            for kinds in combinations(self.moves, number)
            for moves in product(*kinds)
        }
        return {setting for setting in found if self.is_legal(setting)}

    def is_legal(self, setting: Setting) -> bool:
        """Whether the rules allow it, tensor groups stay on a node, a slice of the loss is a part, and what
        comes last is not asked for twice."""
        before = self.before
        if setting.nodes > before.nodes and setting.sequence_length < before.sequence_length:
            return False
        chunk, machine = setting.loss_chunk_size, self.plan.machine
        is_part = chunk == "none" or chunk < setting.micro_batch_size * setting.sequence_length
        is_near = machine.device == "cpu" or setting.tp == before.tp or not machine.num_devices % setting.tp
        return is_part and is_near and not reasons(proposed(setting, self.plan))

    @cached_property
    def moves(self) -> list[list[dict[str, Any]]]:
        """What may be changed, and to which values."""
        before, chunk = self.before, self.before.loss_chunk_size
        each = self.plan.layout.global_batch_size // before.dp
        slices = (AUTO_LOSS_CHUNK_SIZE, AUTO_LOSS_CHUNK_SIZE // 4)
        on_host = self.plan.machine.device == "cpu"  # where offload saves nothing
        shards = [
            (zero, offload)
            for offload, stages in OFFLOADS.items()
            for zero in stages
            if not on_host or offload == before.offload
        ]
        return [
            [{"micro_batch_size": size} for size in divisors(each) if size < before.micro_batch_size],
            [{"recompute": name} for name in _RECOMPUTE[_RECOMPUTE.index(before.recompute) + 1 :]],
            [{"loss_chunk_size": size} for size in slices if chunk == "none" or size < chunk],
            [{"zero": zero, "offload": offload} for zero, offload in shards],
            [{"sequence_parallel": True}],
            list(self.degrees()),
            [
                {"sequence_length": before.sequence_length // part}
                for part in (2, 4, 8)
                if before.sequence_length // part >= SHORTEST_SEQUENCE
            ],
        ]

    def degrees(self) -> Iterator[dict[str, Any]]:
        """Other degrees on the same ranks and on the devices that are idle, then on more machines; on CPUs,
        where ranks share the memory, on fewer ranks."""
        before, machine = self.before, self.plan.machine
        if machine.device == "cpu":
            worlds = dict.fromkeys(divisors(before.world_size), before.nodes)
        else:
            there = machine.num_devices * before.nodes
            worlds = {
                before.world_size: before.nodes,
                **{there * more: before.nodes * more for more in (1, 2, 4)},
            }
        for world, nodes in worlds.items():
            for pp, tp in product(divisors(world), repeat=2):
                if world % (pp * tp):
                    continue
                move = {"dp": world // pp // tp, "pp": pp, "tp": tp, "nodes": nodes, **self.split_with(tp)}
                # Whatever else is changed: these degrees have to be legal with something.
                if self.is_legal(replace(self.before, **move, micro_batch_size=1, zero=1, offload="none")):
                    yield move

    def split_with(self, tp: int) -> dict[str, Any]:
        """A tensor group that is new splits the sequence too, where it can."""
        before = self.before
        divides = tp > 1 and before.sequence_length % tp == 0
        return {"sequence_parallel": divides and (before.tp == 1 or before.sequence_parallel)}

    def may_fit(self, setting: Setting) -> bool:
        """Whether weights, master weights and optimizer states would fit without all else."""
        plan, at = self.plan, setting
        each = parameters(plan.model) / (at.pp * at.tp)
        low = 4 if plan.training.precision == "fp32" else 2
        weights = (0 if at.offload == "parameters" else low) / (at.dp if at.zero == 3 else 1)
        master = 4 if at.zero else 0
        kept = 0 if at.offload != "none" else master + state_bytes(plan.training)
        states = kept / (at.dp if at.zero else 1)
        ranks = at.world_size if plan.machine.device == "cpu" else 1
        return ranks * each * (weights + states) <= self.budget_bytes

    @cached_property
    def budget_bytes(self) -> int:
        """What may be used."""
        return verdict_of(self.plan, plan_memory(self.plan)).budget_bytes or 0

    def stages(self, pp: int) -> tuple[int, ...]:
        """Stages that are looked at: nearly always the first, which is filled deepest, or the last, which has
        the logits, holds the most; all where they share a host."""
        return tuple(range(pp)) if self.plan.machine.device == "cpu" else tuple(sorted({0, pp - 1}))

    def fits(self, setting: Setting) -> bool:
        """Whether the stages that are looked at fit by the estimate."""
        plan = self.plan
        layout = Layout(
            dp=setting.dp,
            pp=setting.pp,
            tp=setting.tp,
            zero=setting.zero,
            sequence_parallel=setting.sequence_parallel,
            micro_batch_size=setting.micro_batch_size,
            num_micro_batches=plan.layout.global_batch_size // (setting.dp * setting.micro_batch_size),
            recompute=setting.recompute,
            stage_bounds=stage_bounds(plan.model, setting.sequence_length, setting.pp),
            offload=setting.offload,
        )
        training = replace(
            plan.training,
            sequence_length=setting.sequence_length,
            loss_chunk_size=setting.loss_chunk_size,
        )
        largest = largest_stage(plan.model, layout)
        config = deepspeed_config(training, layout, rank_parameters=largest, raw=self.raw)
        memory = memory_of(
            plan.model,
            training,
            layout,
            machine=plan.machine,
            deepspeed=config,
            stages=self.stages(setting.pp),
        )
        fits = judged(memory, plan.machine, share=plan.memory_budget).fits is True
        return fits and (setting.offload == "none" or memory.host_bytes <= MOST_HOST_BYTES)


_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


def _kinds(before: Setting, after: Setting) -> frozenset[str]:
    """What is changed: keys, those of degrees taken together."""
    names = {name for name in PATHS if getattr(before, name) != getattr(after, name)}
    if not names & _DEGREES:
        return frozenset(names)
    kind = "devices" if after.world_size > before.world_size else "degrees"
    return frozenset({*(names - _DEGREES - {"sequence_parallel"}), kind})


_DEGREES = {"dp", "pp", "tp", "nodes"}
