"""Job, machine and data -> plan, or all that stands against it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

import partrain
from partrain.errors import Fault, InfeasibleError, Reason, SpecError
from partrain.layout.layout import Layout
from partrain.layout.notes import notes
from partrain.layout.proposal import Proposal
from partrain.layout.rules import reasons
from partrain.layout.stages import balanced_bounds
from partrain.model.shape import flops_per_token, layer_flops, parameters, rank_parameters
from partrain.plan.batch_ramp import steps_for
from partrain.plan.choose import Choice, choose, choose_loss_chunk_size
from partrain.plan.ds_config import deepspeed_config
from partrain.plan.evaluation import evaluation_plan, evaluation_reasons, validation_set
from partrain.plan.memory import judged, memory_notes, memory_of, stage_plans
from partrain.plan.plan import Plan, TrainingPlan
from partrain.plan.resolved import origins_of, resolved_job
from partrain.spec.catalog import UnknownName, given_node, node
from partrain.spec.data import share_of
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.hardware import BY_HAND, NodeSection
from partrain.spec.job import JobSpec
from partrain.spec.load import Reading, is_doubtful, place_of
from partrain.spec.model import ModelSpec
from partrain.spec.optimizers import OPTIMIZERS, resolve_optimizer
from partrain.spec.published import export_reasons
from partrain.spec.resolve import resolve_model
from partrain.spec.training import ChunkSize

SMALLEST_FIRST_STAGE = 2
"""Layers: the embedding costs next to nothing and has no weight without decay, it goes with a block."""


def decide(
    reading: Reading,
    *,
    machine: MachineFacts,
    data: DatasetFacts | None,
    validation: DatasetFacts | None = None,
    data_faults: Sequence[Fault] = (),
    config: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan for a job; `machine` is this one, which `hardware.node` replaces.

    `validation` is the file that `data.validation` names. `data`, or it, is None when `data_faults` say why;
    they also say what is wrong with the weights that `model.from` names. `config` is what the config beside
    these states, None: it is read.
    Raises SpecError with all faults of job, data and layout
    together; InfeasibleError when only values that were `auto` stand against each other.
    """
    job = reading.job
    if job is None:
        raise SpecError(_ordered([*reading.faults, *(_placed(fault, reading) for fault in data_faults)]))
    is_file = job.data.validation is not None and share_of(job.data.validation) is None
    if not data_faults and (data is None or (is_file and validation is None)):
        raise ValueError("data is None without a fault")
    here, unknown_node = _machine(job, machine)
    vocabulary = data.vocab_size if data else None
    resolved = resolve_model(
        job.model, sequence_length=job.training.sequence_length, vocab_size=vocabulary, config=config
    )
    choice = choose(job, model=resolved.model, machine=here)
    unknown = {"data.train": data is None, "hardware.node": bool(unknown_node)}
    doubtful = reading.doubtful.union(path for path, is_unknown in unknown.items() if is_unknown)
    judged = (
        *resolved.reasons,
        *reasons(choice.proposal),
        *too_few_tokens(data, job.training.sequence_length),
        *_long_warm_up(job),
        *_export_reasons(job, resolved.model, choice.proposal),
        *evaluation_reasons(
            job, data, validation, vocab_size=resolved.model.vocab_size if resolved.model else None
        ),
    )
    sure = (reason for reason in judged if not any(is_doubtful(doubtful, path) for path in reason.paths))
    against = (*unknown_node, *sure)
    if reading.faults or data_faults or against:
        raise _refusal(reading, data_faults, against, exhausted=choice.exhausted)
    assert resolved.model is not None
    assert data is not None
    layout = _layout(resolved.model, choice)
    chunk_size, chunk_origin = choose_loss_chunk_size(
        job.training, model=resolved.model, layout=layout, precision=choice.proposal.precision
    )
    training = _training(job, choice.proposal, chunk_size)
    plan = _plan(job, model=resolved.model, data=data, choice=choice, layout=layout, training=training)
    apart = validation_set(job, data, validation)
    evaluation, evaluation_origins = evaluation_plan(job, apart, steps=training.steps)
    weights = os.path.abspath(job.model.from_) if job.model.from_ else None
    plan = replace(plan, evaluation=evaluation, weights=weights)
    found = {**resolved.origins, **_origins(job, here), **reading.origins, **choice.origins, **chunk_origin}
    return replace(plan, origins=origins_of(resolved_job(job, plan), {**found, **evaluation_origins}))


def _machine(job: JobSpec, here: MachineFacts) -> tuple[MachineFacts, tuple[Reason, ...]]:
    """The machine the job is for, or this one with the reason why that is not known."""
    wanted = job.hardware.node
    if isinstance(wanted, NodeSection):
        return given_node(wanted), ()
    if wanted is None or (wanted == "cpu" and here.device == "cpu"):
        return here, ()
    try:
        return node(wanted), ()
    except UnknownName as error:
        fix = " or ".join((*error.nearest, f"its numbers by hand: {BY_HAND}"))
        return here, (Reason(("hardware.node",), str(error), ", ".join(error.known), fix),)


def too_few_tokens(data: DatasetFacts | None, length: int) -> tuple[Reason, ...]:
    """Why there is no sample in the data: it is a sequence of `length` and the token after it."""
    if data is None or data.num_tokens is None or data.num_tokens > length:
        return ()
    said = f"{data.num_tokens} tokens are too few for a sequence of {length} and the token after it"
    fix = f"sequence_length: {data.num_tokens - 1}" if data.num_tokens > 1 else "more data"
    return (Reason(("data.train", "training.sequence_length"), said, f"{length + 1} tokens or more", fix),)


def _long_warm_up(job: JobSpec) -> tuple[Reason, ...]:
    """As with `steps` given, which `spec.rules` judges: the peak learning rate must be reached."""
    warmup, tokens = job.training.schedule.warmup_steps, job.training.tokens
    if job.training.steps is not None or tokens is None or warmup < _steps(job):
        return ()
    steps = _steps(job)
    said = f"warmup_steps={warmup} is not less than the {steps} steps that tokens={tokens:g} make"
    paths = ("training.schedule.warmup_steps", "training.tokens")
    return (Reason(paths, said, f"0 to {steps - 1}", f"warmup_steps: {steps // 10}"),)


def _export_reasons(job: JobSpec, model: ModelSpec | None, wish: Proposal) -> tuple[Reason, ...]:
    """Why transformers would have no such model, if it is to get it."""
    if job.checkpoint.export == "none" or model is None:
        return ()
    return export_reasons(model, wish.precision)


def _refusal(
    reading: Reading, data_faults: Sequence[Fault], against: Sequence[Reason], *, exhausted: frozenset[str]
) -> SpecError | InfeasibleError:
    """All faults together; infeasible when each comes of an `auto` that had nothing legal to become."""
    faults = [*reading.faults, *(_placed(fault, reading) for fault in data_faults)]
    judged = [_fault(reason, reading) for reason in against]
    infeasible = not faults and all(
        exhausted.intersection(reason.paths) or not _given(reason, reading) for reason in against
    )
    return (InfeasibleError if infeasible else SpecError)(_ordered([*faults, *judged]))


def _given(reason: Reason, reading: Reading) -> list[str]:
    """Those of the reason's paths that the job gives a value other than `auto`."""
    return [path for path in reason.paths if path in reading.places and not _is_auto(path, reading.job)]


def _is_auto(path: str, job: JobSpec | None) -> bool:
    value: object = job
    for key in path.split("."):
        value = getattr(value, key, None)
    return value == "auto"


def _fault(reason: Reason, reading: Reading) -> Fault:
    path = (*_given(reason, reading), reason.paths[0])[0]
    return Fault(path, reason.message, reason.allowed, reason.fix, place_of(reading, path))


def _placed(fault: Fault, reading: Reading) -> Fault:
    return fault if fault.place else replace(fault, place=place_of(reading, fault.path))


def _ordered(faults: Sequence[Fault]) -> list[Fault]:
    """Faults as they stand in the file, then those of options, then those without a place."""

    def key(fault: Fault) -> tuple[bool, bool, str, int, int]:
        place = fault.place
        if place is None:
            return (True, True, "", 0, 0)
        return (False, place.line == 0, place.source, place.line, place.column)

    return sorted(faults, key=key)


def _origins(job: JobSpec, machine: MachineFacts) -> dict[str, str]:
    origins = {"hardware.node": machine.origin}
    if job.training.steps is None:
        of = "by batch_ramp" if job.training.batch_ramp else "/ (global_batch_size x sequence_length)"
        origins["training.steps"] = f"training.tokens {of}, rounded up"
    return origins


def _steps(job: JobSpec) -> int:
    training = job.training
    if training.steps is not None:
        return training.steps
    assert training.tokens is not None
    sequences = ceil(training.tokens / training.sequence_length)
    return steps_for(sequences, training.batch_ramp, training.global_batch_size)


def _layout(model: ModelSpec, choice: Choice) -> Layout:
    wish = choice.proposal
    assert wish.micro_batch_size is not None
    return Layout(
        dp=wish.dp,
        pp=wish.pp,
        tp=wish.tp,
        zero=wish.zero,
        sequence_parallel=wish.sequence_parallel,
        micro_batch_size=wish.micro_batch_size,
        num_micro_batches=wish.num_micro_batches,
        recompute=choice.recompute,
        stage_bounds=stage_bounds(model, wish.sequence_length, wish.pp),
        offload=wish.offload,
    )


@lru_cache(maxsize=256)
def stage_bounds(model: ModelSpec, sequence_length: int, pp: int) -> tuple[int, ...]:
    """Bounds of the stages, balanced by forward FLOPs."""
    return balanced_bounds(layer_flops(model, sequence_length), pp, min_first=SMALLEST_FIRST_STAGE)


def largest_stage(model: ModelSpec, layout: Layout) -> int:
    """Parameters of a rank of the stage that has the most."""
    ranges = zip(layout.stage_bounds, (bound - 1 for bound in layout.stage_bounds[1:]), strict=False)
    return max(rank_parameters(model, tp=layout.tp, first=first, last=last) for first, last in ranges)


def _training(job: JobSpec, wish: Proposal, chunk_size: ChunkSize) -> TrainingPlan:
    training = job.training
    return TrainingPlan(
        sequence_length=wish.sequence_length,
        steps=_steps(job),
        precision=wish.precision,
        loss_scale=training.loss_scale,
        loss_chunk_size=chunk_size,
        label_smoothing=training.label_smoothing,
        z_loss=training.z_loss,
        seed=training.seed,
        optimizer=resolve_optimizer(training.optimizer),
        schedule=training.schedule,
        batch_ramp=training.batch_ramp,
        compile=wish.compile,
        attention=wish.attention,
        tf32=wish.tf32,
        prefetch=training.prefetch,
    )


def _plan(
    job: JobSpec,
    *,
    model: ModelSpec,
    data: DatasetFacts,
    choice: Choice,
    layout: Layout,
    training: TrainingPlan,
) -> Plan:
    """The plan, its origins still to be told."""
    wish = choice.proposal
    config = deepspeed_config(
        training, layout, rank_parameters=largest_stage(model, layout), raw=job.deepspeed
    )
    memory = memory_of(model, training, layout, machine=wish.machine, deepspeed=config)
    verdict = judged(memory, wish.machine, share=job.hardware.memory_budget)
    return Plan(
        version=1,
        partrain=partrain.__version__,
        name=job.name,
        model=model,
        data=data,
        training=training,
        layout=layout,
        nodes=wish.nodes,
        machine=wish.machine,
        memory_budget=job.hardware.memory_budget,
        stages=stage_plans(memory),
        parameters=parameters(model),
        flops_per_token=flops_per_token(model, wish.sequence_length),
        guard=job.guard,
        deepspeed=config,
        env=job.launch.env,
        run_dir=job.run.dir,
        log_every=job.monitor.log_every,
        track_memory=job.monitor.track_memory,
        checkpoint=job.checkpoint,
        origins={},
        notes=(*_auto_notes(choice), *notes(wish), *memory_notes(verdict), *_checkpoint_notes(job)),
    )


def _checkpoint_notes(job: JobSpec) -> tuple[str, ...]:
    """What a run loses when it is resumed."""
    name = job.training.optimizer.name
    if job.checkpoint.every == "none" or OPTIMIZERS[name].state_bytes == 4:
        return ()
    return (f"checkpoints do not have the states of {name}: after a resume they begin anew",)


def _auto_notes(choice: Choice) -> tuple[str, ...]:
    """Degrees that were `auto`."""
    wish = choice.proposal
    degrees = [
        f"{name} {getattr(wish, name)}" for name in ("dp", "pp", "tp") if f"parallel.{name}" in choice.origins
    ]
    if not degrees:
        return ()
    return (f"auto took the simplest legal degrees: {', '.join(degrees)}; this version does not search",)
