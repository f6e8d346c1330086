"""Memory of a job under the product's engine, before it runs: the peak of each rank over all moments.

`estimate` is the entry. Ranks of a stage are alike but for padding and for the ends of their shares, so a
stage is computed once, for its worst replica; nothing here grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from partrain.cost.constants import COMMUNICATOR_BYTES, CONTEXT_BYTES, HOLES, RESERVE
from partrain.cost.estimate import Estimate, Moment, StageEstimate, Term
from partrain.cost.laws import Law, Wrapper, law_of
from partrain.cost.quantities import Buckets, quantities
from partrain.cost.stage import Layers, StageWork, moments, term_of
from partrain.layout.layout import Layout
from partrain.model.activations import LayerTapes, Share, layer_tapes
from partrain.model.profile import PROFILES, RuntimeProfile
from partrain.model.shape import parameters, rank_parameters, stage_weights
from partrain.model.weights import local_numel
from partrain.spec.facts import MachineFacts
from partrain.spec.model import ModelSpec
from partrain.spec.training import ChunkSize
from partrain.units import format_bytes

OPTIMIZER_STATES = {"adamw": 8, "adamw8bit": 2, "lion": 4, "muon": 8}
"""Bytes of states a parameter: moments in fp32, of which Lion has one, or in 8 bits."""

PIPE = "deepspeed 0.19.8 runtime/pipe/engine.py"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What of a training decides its memory."""

    sequence_length: int
    precision: str
    """fp32, bf16 or fp16."""
    loss_chunk_size: ChunkSize = "none"
    """Tokens whose logits exist at once."""
    grad_accum: str = "fp32"
    """Number format in which gradients are accumulated."""
    optimizer_states: int = 8
    """Bytes of optimizer states a parameter, of OPTIMIZER_STATES."""
    buckets: Buckets = field(default_factory=Buckets)
    """DeepSpeed's buffer sizes: `Buckets.of(config["zero_optimization"])`."""


def estimate(
    model: ModelSpec,
    work: Work,
    layout: Layout,
    *,
    machine: MachineFacts,
    profile: RuntimeProfile | None = None,
    stages: Iterable[int] | None = None,
) -> Estimate:
    """What each rank of the job holds; `profile` defaults to the engine's on this kind of device.

    `stages`: only these, for a search that cannot wait for all.
    Raises ValueError for a layout or precision that the engine has no optimizer for.
    """
    profile = profile or PROFILES[machine.device]
    job = _Job(model, work, layout, machine, profile)
    found = tuple(job.stage(stage) for stage in (range(layout.pp) if stages is None else stages))
    checkpoint = parameters(model) * (4 + work.optimizer_states)
    return Estimate(
        stages=found,
        host=tuple(job.host(found)),
        checkpoint_bytes=checkpoint,
        assumptions=tuple(job.assumptions()),
    )


@dataclass(frozen=True)
class _Job:
    model: ModelSpec
    work: Work
    layout: Layout
    machine: MachineFacts
    profile: RuntimeProfile

    @property
    def is_pipelined(self) -> bool:
        """Whether the pipeline engine runs it: it refuses ZeRO 2 and 3."""
        return self.layout.zero < 2

    def law(self) -> Law:
        """The law of the wrapper that the engine gets."""
        work, layout = self.work, self.layout
        accumulate = work.precision if work.precision == "fp32" else work.grad_accum
        return law_of(
            Wrapper(
                zero=layout.zero,
                precision=work.precision,
                grad_accum=accumulate,
                pipeline=self.is_pipelined,
                offload=layout.offload,
                gloo=self.machine.device == "cpu",
                states=work.optimizer_states,
            )
        )

    def share(self) -> Share:
        """A rank's share of a micro-batch."""
        layout = self.layout
        return Share(
            sequences=layout.micro_batch_size,
            sequence_length=self.work.sequence_length,
            tp=layout.tp,
            sequence_parallel=layout.sequence_parallel,
            precision=self.work.precision,
            recompute=layout.recompute,
            loss_chunk_size=self.work.loss_chunk_size,
        )

    def tapes(self) -> LayerTapes:
        """The engine's layers."""
        return layer_tapes(self.model, self.share(), self.profile)

    def layers(self, stage: int) -> Layers:
        """The layers of a stage."""
        first, end = self.layout.stage_bounds[stage : stage + 2]
        tapes, last = self.tapes(), self.model.num_layers + 1
        blocks = min(end, last) - max(first, 1)
        found = [(tapes.embedding, 1 if first == 0 else 0), (tapes.block, max(blocks, 0))]
        return tuple((tape, count) for tape, count in (*found, (tapes.head, 1 if end > last else 0)) if count)

    def stage_work(self, stage: int) -> StageWork:
        """All that decides the memory of a stage's ranks."""
        layout, (first, end) = self.layout, self.layout.stage_bounds[stage : stage + 2]
        weights = stage_weights(self.model, first, end - 1)
        groups = [
            [local_numel(weight, layout.tp) for weight in weights if weight.decay is decay]
            for decay in (True, False)
        ]
        fill = min(layout.pp - stage, layout.num_micro_batches)
        layers, is_last = self.layers(stage), stage == layout.pp - 1
        always, each, lingering = self.buffers(stage, layers)
        return StageWork(
            layers=layers,
            law=self.law(),
            quantities=quantities(
                [group for group in groups if group], dp=layout.dp, buckets=self.work.buckets
            ),
            fill=fill,
            num_micro_batches=layout.num_micro_batches,
            always=always,
            on_host=self.machine.device == "cpu",
            each=each,
            arriving=0 if is_last else layers[-1][0].output_size,
            replaced=sum(term.bytes for term in lingering) // min(2, layout.num_micro_batches),
            lingering=lingering,
        )

    def buffers(self, stage: int, layers: Layers) -> tuple[tuple[Term, ...], ...]:
        """What the engine itself holds: always, of every micro-batch in flight, of ones that are done."""
        layout, share = self.layout, self.share()
        ids = share.inside * 8
        is_first, is_last = stage == 0, stage == layout.pp - 1
        residual = share.outside * self.model.hidden_size * share.each
        always = [
            Term(
                "workspaces of matrix products",
                self.profile.workspace_bytes,
                "two threads",
                self.profile.source,
            )
        ]
        if not self.is_pipelined:
            always.append(
                Term("tokens and labels", 3 * ids, f"3 x {format_bytes(ids)}", "engine/train.py: batches")
            )
            return tuple(term for term in always if term.bytes), (), ()
        each = (
            []
            if is_last
            else [Term("output that waits for its gradient", residual, "tokens x hidden size", PIPE)]
        )
        if not is_first:
            each.append(
                Term("input as it came", residual, "tokens x hidden size; forward works on a copy", PIPE)
            )
        if layout.pp > 1:
            always.append(
                Term(
                    "receive buffer",
                    residual,
                    "tokens x hidden size, activations and gradients take turns",
                    PIPE,
                )
            )
        if is_first or is_last:
            slots = min(max(2, min(layout.pp - stage, layout.num_micro_batches)), layout.num_micro_batches)
            count = 3 + slots * ((1 if is_first else 0) + (1 if is_last else 0))
            always.append(Term("tokens and labels", count * ids, f"{count} x {format_bytes(ids)}", PIPE))
        lingering: list[Term] = []
        if is_last:
            size = share.inside * self.model.hidden_size * share.each
            slots = min(2, layout.num_micro_batches)
            lingering = [
                Term("outputs of the last stage, never cleared", slots * size, f"{slots} buffers", PIPE)
            ]
            if not is_first:
                inputs = Term(
                    "inputs that their graphs refer to, and gradients",
                    2 * slots * residual,
                    f"{slots} x 2",
                    PIPE,
                )
                lingering.append(inputs)
        return tuple(term for term in always if term.bytes), tuple(each), tuple(lingering)

    def stage(self, stage: int) -> StageEstimate:
        """The worst rank of `stage`."""
        first, end = self.layout.stage_bounds[stage : stage + 2]
        work = self.stage_work(stage)
        found = moments(work)
        worst = max(found, key=lambda moment: moment.bytes)
        reserve, outside = self.reserve(found), self.outside()
        return StageEstimate(
            stage=stage,
            first=first,
            last=end - 1,
            parameters=rank_parameters(self.model, tp=self.layout.tp, first=first, last=end - 1),
            moments=found,
            replicated_bytes=self.replicated(worst, work),
            reserve_bytes=reserve,
            outside_bytes=outside,
        )

    def replicated(self, moment: Moment, work: StageWork) -> int:
        """Bytes of model states in `moment` that all replicas hold alike."""
        alike = {row.name for row in work.law.rows if not row.shared}
        return 0 if self.layout.dp == 1 else sum(term.bytes for term in moment.terms if term.name in alike)

    def reserve(self, found: tuple[Moment, ...]) -> int:
        """Bytes the caching allocator holds beyond the peak; none on CPUs."""
        if self.machine.device == "cpu":
            return 0
        reserved = max(moment.bytes * (1 + RESERVE.value) + moment.waiting * HOLES.value for moment in found)
        return int(reserved) - max(moment.bytes for moment in found)

    def outside(self) -> int:
        """Bytes of the context and the communicators: the world, and a group along each axis."""
        if self.machine.device == "cpu":
            return 0
        axes = sum(degree > 1 for degree in (self.layout.dp, self.layout.pp, self.layout.tp))
        groups = axes + 1 if self.layout.world_size > 1 else 0
        return int(CONTEXT_BYTES.value + groups * COMMUNICATOR_BYTES.value)

    def host(self, stages: tuple[StageEstimate, ...]) -> Iterator[Term]:
        """Memory of a node's host."""
        ranks = self.layout.world_size
        if self.machine.device == "cpu":
            each = self.layout.dp * self.layout.tp
            total = sum(stage.peak_bytes for stage in stages) * each
            yield Term("tensors of all ranks", total, f"the peaks of {ranks} ranks on one machine")
            return
        here = min(ranks, self.machine.num_devices)
        work = self.stage_work(0)
        for row in (row for row in work.law.rows if row.on_host):
            term = term_of(row, work)
            yield replace(term, bytes=term.bytes * here, formula=f"{here} ranks x {term.formula}")

    def assumptions(self) -> Iterator[str]:
        """What was taken for granted."""
        yield f"kernels of {self.profile.name}"
        if self.machine.device != "cpu":
            yield "the allocator's reserve, the context and the communicators are fitted numbers"
