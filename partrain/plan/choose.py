"""What `auto` becomes: the simplest legal value, and in words why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from partrain.layout.arithmetic import blocks_can_be_compiled
from partrain.layout.layout import Layout
from partrain.layout.proposal import Proposal
from partrain.layout.rules import OFFLOADS, tensor_degrees
from partrain.model.shape import block_activations, padded_vocab
from partrain.spec.facts import MachineFacts
from partrain.spec.job import JobSpec
from partrain.spec.model import ModelSpec
from partrain.spec.numbers import divisors
from partrain.spec.training import ChunkSize, Precision, Recompute, TrainingSection
from partrain.units import format_bytes

LARGEST_AUTO_MICRO_BATCH = 8
"""Sequences: matrix products of a decoder are wide enough by then, and activations grow with every one."""

MICRO_BATCHES_A_STAGE = 4
"""With m = 4 pp micro-batches the bubble, (pp - 1) / (m + pp - 1), stays below a fifth."""


AUTO_LOSS_CHUNK_SIZE = 2048
"""Tokens: each slice adds to the gradient of the head's matrix, 12 to 14 bytes moved an element in bf16
against 6 x 2048 operations: within a fifth of the time even where 150 operations take as long as a byte."""


@dataclass(frozen=True)
class Choice:
    """A job's layout with every `auto` decided."""

    proposal: Proposal
    recompute: Recompute
    origins: Mapping[str, str]
    """Key path of each `auto` -> why it became what it is."""

    @property
    def exhausted(self) -> frozenset[str]:
        """Key paths of each `auto` that has no legal value."""
        wish = self.proposal
        none = wish.sequence_parallel and wish.tp == 1 and "parallel.tp" in self.origins
        return frozenset({"parallel.tp"} if none else ())


def choose(job: JobSpec, *, model: ModelSpec | None, machine: MachineFacts) -> Choice:
    """The layout that `job` asks for, with the simplest legal value for each `auto`.

    What is given is taken as it is; whether it is legal is judged by `layout.rules`.
    """
    origins: dict[str, str] = {}
    parallel, training = job.parallel, job.training
    proposal = Proposal(
        model=model,
        machine=machine,
        nodes=job.hardware.nodes,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        precision="fp32",
        dp=_one(parallel.dp, "parallel.dp", origins),
        pp=_one(parallel.pp, "parallel.pp", origins),
        tp=_one(parallel.tp, "parallel.tp", origins),
        zero=max(1, OFFLOADS[parallel.offload][0]) if parallel.zero == "auto" else parallel.zero,
        sequence_parallel=parallel.sequence_parallel is True,
        micro_batch_size=None,
        offload=parallel.offload,
        loss_scale=training.loss_scale,
        optimizer=training.optimizer.name,
        batch_ramp=training.batch_ramp,
    )
    proposal = replace(proposal, tf32=training.tf32, track_memory=job.monitor.track_memory)
    for decide in (_precision, _zero, _tensor_group, _sequence_parallel, _micro_batch, _attention, _compile):
        proposal = decide(job, proposal, origins)
    if training.recompute == "auto":
        origins["training.recompute"] = "auto: nothing is computed twice"
    recompute = "none" if training.recompute == "auto" else training.recompute
    return Choice(proposal, recompute, origins)


def _one(value: int | str, path: str, origins: dict[str, str]) -> int:
    if isinstance(value, int):
        return value
    origins[path] = "auto: the simplest"
    return 1


def _precision(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    given = job.training.precision
    if given != "auto":
        return replace(wish, precision=given)
    precision: Precision = "bf16" if wish.machine.device != "cpu" and wish.zero else "fp32"
    why = "zero 0 is for fp32" if not wish.zero else "on CPUs" if precision == "fp32" else "on GPUs"
    origins["training.precision"] = f"auto: {why}"
    return replace(wish, precision=precision)


def _zero(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    """Without replicas there is nothing to shard, and the flat copies of ZeRO cost 4 % of a step."""
    if job.parallel.zero != "auto":
        return wish
    if wish.offload != "none":
        origins["parallel.zero"] = f"auto: the lowest that can offload {wish.offload}"
        return wish
    if wish.dp == 1 and wish.pp == 1 and wish.precision == "fp32":
        origins["parallel.zero"] = "auto: one replica has nothing to shard"
        return replace(wish, zero=0)
    origins["parallel.zero"] = "auto: optimizer states sharded over dp, which is legal with everything"
    return wish


def _tensor_group(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    """An `auto` tp is 1, unless sequence parallelism is asked for: then the smallest that can have it."""
    if job.parallel.tp != "auto" or not wish.sequence_parallel:
        return wish
    if wish.model is None:
        # Whether there is such a degree cannot be judged without a model.
        return replace(wish, sequence_parallel=False)
    tp = next(tensor_degrees(wish), 1)
    origins["parallel.tp"] = "auto: the smallest legal with sequence_parallel"
    return replace(wish, tp=tp)


def _sequence_parallel(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    if job.parallel.sequence_parallel != "auto":
        return wish
    legal = wish.tp > 1 and wish.sequence_length % wish.tp == 0
    if wish.tp == 1:
        why = "no tensor group"
    else:
        why = "tp divides the sequence" if legal else "tp does not divide the sequence"
    origins["parallel.sequence_parallel"] = f"auto: {why}"
    return replace(wish, sequence_parallel=legal)


def _micro_batch(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    given = job.training.micro_batch_size
    if given != "auto":
        return replace(wish, micro_batch_size=given)
    each, rest = divmod(wish.batch_divisor, wish.dp)
    if rest:
        return wish
    most, limit = LARGEST_AUTO_MICRO_BATCH, f"up to {LARGEST_AUTO_MICRO_BATCH}"
    if wish.pp > 1:
        most = min(most, wish.global_batch_size // wish.dp // (MICRO_BATCHES_A_STAGE * wish.pp))
        limit += f" that leaves {MICRO_BATCHES_A_STAGE} micro-batches a stage, else 1"
    micro = max(value for value in divisors(each) if value <= max(1, most))
    of = "the batch of every step" if wish.batch_ramp else "global_batch_size"
    origins["training.micro_batch_size"] = f"auto: the largest divisor of {of} / dp {limit}"
    return replace(wish, micro_batch_size=micro)


def _attention(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    if job.training.attention != "auto":
        return replace(wish, attention=job.training.attention)
    origins["training.attention"] = "auto: torch knows which kernels take the shapes"
    return replace(wish, attention="torch")


def _compile(job: JobSpec, wish: Proposal, origins: dict[str, str]) -> Proposal:
    """Wherever the rules allow it on GPUs; on CPUs compiling takes longer than most runs there."""
    given = job.training.compile
    if given != "auto":
        return replace(wish, compile=given)
    against = blocks_can_be_compiled(replace(wish, compile=True))
    legal = wish.machine.device != "cpu" and against is None
    why = "on CPUs" if wish.machine.device == "cpu" else against.message if against else "on GPUs"
    origins["training.compile"] = f"auto: {why}"
    return replace(wish, compile=legal)


def choose_loss_chunk_size(
    training: TrainingSection, *, model: ModelSpec, layout: Layout, precision: Precision
) -> tuple[ChunkSize, dict[str, str]]:
    """Tokens whose logits exist at once, and its origin if it was `auto`.

    Slices where a micro-batch's logits would outweigh what the last stage's blocks keep of it: there is
    one micro-batch at a time on that stage, so the length of both is the same and a token decides.
    """
    if training.loss_chunk_size != "auto":
        return training.loss_chunk_size, {}
    each = 4 if precision == "fp32" else 2
    # The softmax is in fp32; in 16 bits the logits themselves, or their gradient, exist beside it.
    logits = padded_vocab(model, layout.tp) // layout.tp * (4 if precision == "fp32" else 4 + each)
    first, end = layout.stage_bounds[-2:]
    blocks = min(end, model.num_layers + 1) - max(first, 1)
    kept = blocks * each * block_activations(model, tp=layout.tp, recompute=layout.recompute)
    said = f"a token's logits take {format_bytes(logits)}, the last stage's blocks keep {format_bytes(kept)}"
    size: ChunkSize = AUTO_LOSS_CHUNK_SIZE if logits > kept else "none"
    if size != "none" and layout.micro_batch_size * training.sequence_length <= size:
        size, said = "none", f"a micro-batch has no more than {AUTO_LOSS_CHUNK_SIZE} tokens"
    return size, {"training.loss_chunk_size": f"auto: {said}"}
