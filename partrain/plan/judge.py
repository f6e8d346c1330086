"""A plan that came from a file, where anyone may have edited it: can it be trained as it stands?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from partrain.errors import Fault, Reason
from partrain.layout.proposal import Proposal
from partrain.layout.rules import reasons
from partrain.layout.stages import balanced_bounds
from partrain.model.shape import flops_per_token, layer_flops, parameters
from partrain.plan.decide import SMALLEST_FIRST_STAGE, largest_stage, too_few_tokens
from partrain.plan.ds_config import deepspeed_config
from partrain.plan.evaluation import file_reasons
from partrain.plan.memory import plan_memory, stage_plans
from partrain.plan.plan import HIDDEN, Plan
from partrain.spec.deepspeed import ALLOWED
from partrain.spec.facts import num_windows
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.optimizers import OPTIMIZERS, unread_keys
from partrain.spec.published import export_reasons
from partrain.spec.resolve import resolve_model
from partrain.spec.rules import exported_but_not_saved, kept_but_not_saved, too_high_an_end, too_long_a_warmup
from partrain.spec.scalars import CONTROL
from partrain.spec.values import plain

_PLACES = {
    "training.micro_batch_size": "layout.micro_batch_size",
    "training.global_batch_size": "layout.num_micro_batches",
    "model.preset": "model",
    "data.train": "data",
    "data.validation": "evaluation.data",
    "hardware.nodes": "nodes",
    "hardware.node": "machine",
}
"""Key path in a job -> where a plan has it; `parallel` is its `layout`, all else has the same path."""


def plan_faults(plan: Plan) -> tuple[Fault, ...]:
    """All that stands against `plan`, by the rules that jobs are decided by; empty when it can be trained.

    What follows from the rest of the plan is judged only when the rest is right.
    """
    schedule = plan.training.schedule
    values = (
        kept_but_not_saved(plan.checkpoint),
        exported_but_not_saved(plan.checkpoint),
        too_long_a_warmup(schedule, plan.training.steps),
        too_high_an_end(schedule, plan.training.optimizer.lr),
    )
    against = (
        *_model_reasons(plan),
        *_optimizer_reasons(plan),
        *reasons(proposal_of(plan)),
        *_stage_reasons(plan),
        *(export_reasons(plan.model, plan.training.precision) if plan.checkpoint.export != "none" else ()),
        *filter(None, values),
    )
    found = [Fault(_place(reason), reason.message, reason.allowed, reason.fix) for reason in against]
    return (*found, *_control_characters(plan), *_hidden(plan.env), *(() if found else _differences(plan)))


def _place(reason: Reason) -> str:
    path = reason.paths[0]
    return _PLACES.get(path, path.replace("parallel.", "layout.", 1))


def _model_reasons(plan: Plan) -> tuple[Reason, ...]:
    length = plan.training.sequence_length
    section = ModelSection(**{key.name: getattr(plan.model, key.name) for key in fields(ModelSpec)})
    resolved = resolve_model(section, sequence_length=length, vocab_size=plan.data.vocab_size)
    return (*resolved.reasons, *too_few_tokens(plan.data, length), *_evaluation_reasons(plan))


def _evaluation_reasons(plan: Plan) -> tuple[Reason, ...]:
    """The set is there, and training leaves it alone."""
    wish, length = plan.evaluation, plan.training.sequence_length
    if wish is None:
        return ()
    if wish.data != plan.data:
        against = file_reasons(wish.data, plan.data, length=length, vocab_size=plan.model.vocab_size)
        if against:
            return against
    elif wish.first < 1:
        return (Reason(("evaluation.first",), "nothing is left to train on", "1 or more"),)
    if wish.data.num_tokens is None:
        return ()
    number = num_windows(wish.data.num_tokens, sequence_length=length)
    if wish.first + wish.num_sequences <= number:
        return ()
    said = f"{wish.num_sequences} sequences from {wish.first} on came, and there are {number}"
    return (Reason(("evaluation.num_sequences",), said, f"1 to {number - wish.first}"),)


def _optimizer_reasons(plan: Plan) -> Iterator[Reason]:
    """The optimizer has the numbers that it reads, no others, and the order of weights that it knows."""
    wish, path = plan.training.optimizer, "training.optimizer"
    defaults = OPTIMIZERS[wish.name].defaults
    for key in (key for key in defaults if getattr(wish, key) is None):
        yield Reason(
            (f"{path}.{key}",), "no number came", f"a number: {wish.name} reads it", f"{key}: {defaults[key]}"
        )
    for key in unread_keys(wish):
        yield Reason((f"{path}.{key}",), f"{wish.name} reads no {key}", "null", f"{key}: null")
    if wish.name == "muon" and plan.deepspeed.get("zero_optimization", {}).get("round_robin_gradients"):
        at = "deepspeed.zero_optimization.round_robin_gradients"
        yield Reason((at,), "true came with muon, which does not know that order", "false", "leave it out")


def proposal_of(plan: Plan) -> Proposal:
    """What the rules judge of `plan`."""
    layout = plan.layout
    return Proposal(
        model=plan.model,
        machine=plan.machine,
        nodes=plan.nodes,
        sequence_length=plan.training.sequence_length,
        global_batch_size=layout.global_batch_size,
        precision=plan.training.precision,
        dp=layout.dp,
        pp=layout.pp,
        tp=layout.tp,
        zero=layout.zero,
        sequence_parallel=layout.sequence_parallel,
        micro_batch_size=layout.micro_batch_size,
        offload=layout.offload,
        loss_scale=plan.training.loss_scale,
        optimizer=plan.training.optimizer.name,
        batch_ramp=plan.training.batch_ramp,
        compile=plan.training.compile,
        attention=plan.training.attention,
        tf32=plan.training.tf32,
        track_memory=plan.track_memory,
    )


def _stage_reasons(plan: Plan) -> tuple[Reason, ...]:
    """Stages are contiguous and hold every layer once, the first of them a block too."""
    costs = layer_flops(plan.model, plan.training.sequence_length)
    bounds, pp, last = plan.layout.stage_bounds, plan.layout.pp, len(costs)
    if pp > last - SMALLEST_FIRST_STAGE + 1:
        return ()  # the rules say so
    rises = all(low < high for low, high in pairwise(bounds))
    is_whole = len(bounds) == pp + 1 and rises and (bounds[0], bounds[-1]) == (0, last)
    if is_whole and bounds[1] >= SMALLEST_FIRST_STAGE:
        return ()
    fix = list(balanced_bounds(costs, pp, min_first=SMALLEST_FIRST_STAGE))
    allowed = (
        f"{pp + 1} rising numbers from 0 to {last} for pp={pp}, the second {SMALLEST_FIRST_STAGE} or more"
    )
    return (Reason(("layout.stage_bounds",), f"{_words(bounds)} came", allowed, f"stage_bounds: {fix}"),)


def _control_characters(plan: Plan) -> Iterator[Fault]:
    """None may reach a path, a terminal or the environment; a job has none."""
    for path, value in _leaves(plain(plan)):
        if isinstance(value, str) and CONTROL.search(value):
            yield Fault(path, "a control character came", "text")


def _hidden(env: Mapping[str, str]) -> Iterator[Fault]:
    for name, value in env.items():
        if value == HIDDEN:
            message = "its value was hidden when this plan was printed"
            yield Fault(f"env.{name}", message, fix="partrain plan JOB --out FILE keeps it")


def _differences(plan: Plan) -> Iterator[Fault]:
    """Values that are not what model, training and layout make of them."""
    largest = largest_stage(plan.model, plan.layout)
    config = deepspeed_config(plan.training, plan.layout, rank_parameters=largest, raw={})
    made = {
        "stages": plain(stage_plans(plan_memory(plan))),
        "parameters": parameters(plan.model),
        "flops_per_token": flops_per_token(plan.model, plan.training.sequence_length),
        "deepspeed": config,
    }
    ours, theirs = dict(_leaves(made)), dict(_leaves({key: plain(getattr(plan, key)) for key in made}))
    for path in {**ours, **theirs}:
        came, right = theirs.get(path), ours.get(path)
        if came != right and not _is_free(path):
            because = f"model, training and layout make it {right}" if path in ours else "no plan has it"
            yield Fault(path, f"{_words(came)} came, and {because}")


def _is_free(path: str) -> bool:
    """Whether a job may say what stands there, or it is a prediction, which is made anew."""
    return "memory" in path.split(".") or any(f"{path}.".startswith(f"deepspeed.{free}.") for free in ALLOWED)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Key path and value of everything in `value` that holds nothing else."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = enumerate(value)
    else:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _words(value: Any) -> str:
    return "nothing" if value is None else str(list(value) if isinstance(value, tuple) else value)
