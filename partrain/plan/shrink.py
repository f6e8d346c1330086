"""A job made small enough for a CPU: the same kind of layout, model and training, with less of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from partrain.layout.layout import Layout
from partrain.model.shape import padded_vocab
from partrain.model.weights import ROW_ALIGN
from partrain.plan.plan import Plan
from partrain.plan.resolved import leaves, resolved_job
from partrain.plan.setting import changed_job
from partrain.spec.data import BUILTIN, share_of
from partrain.spec.job import JobSpec
from partrain.spec.model import ModelSpec, rotary_size
from partrain.spec.optimizers import OPTIMIZERS
from partrain.spec.training import ChunkSize, EvaluateSection

MOST_RANKS = 16
"""Processes, each of which loads torch: with more of them a machine does little else."""

STEPS = 4
"""Two until the run is saved and ends, two after it goes on."""

_SEQUENCE, _MICRO_BATCH, _VOCABULARY = 64, 2, 256
_HEAD_SIZES = (16, 32, 64, 128)
_BLOCKS_A_STAGE = 2
_KERNELS = ("torch", "math")
"""Kernels of the attention core that every device has for all shapes."""

_LEARNED_WITHOUT = ("rope_theta", "rope_scaling", "rotary_fraction")
"""Fields of a model that a job may not give with learned positions."""

REASONS: Mapping[str, str] = {
    "model.from": "the small model begins with random weights",
    "training.precision": "CPUs train in fp32 or bf16",
    "training.loss_scale": "it is for fp16",
    "training.optimizer.name": "it needs a GPU",
    "training.compile": "it takes longer than the few steps",
    "training.attention": "the kernel is the GPU's",
    "training.tf32": "it is a format of GPUs",
    "hardware.node": "all ranks are processes of this machine",
    "checkpoint.export": "nobody has a use for the small model",
    "checkpoint.on_failure": "a save that fails is what is looked for",
}
"""Key path -> why its value is another one here; all else is only less of the same."""


@dataclass(frozen=True)
class Change:
    """A value that the small job has in another's place."""

    path: str
    before: Any
    """None: the job says nothing of it."""
    after: Any
    """None: it is left out."""
    why: str = ""
    """Empty: there is only less of it."""


@dataclass(frozen=True)
class Shrunk:
    """A small job, and all in which it differs from the one that it stands for."""

    job: Mapping[str, Any]
    """Section by section, as in a job file."""
    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        """The job file: JSON, which is YAML too."""
        return json.dumps(self.job, indent=2, ensure_ascii=False).replace("${", "$${") + "\n"


def shrunk(job: JobSpec, plan: Plan, *, most: int = MOST_RANKS) -> Shrunk:
    """`job`, whose plan is `plan`, on at most `most` ranks of a CPU; at least two an axis that had as many.

    Family, axes, ZeRO stage, recompute, schedule, data and guards stay as they are. What is left of the
    sizes is divisible by what the layout demands, fills the pipeline, and takes seconds.
    """
    before = _comparable(resolved_job(job, plan))
    dp, pp, tp = small_degrees(plan.layout, most)
    training = _training(job, plan, degrees=(dp, pp, tp))
    small: dict[str, dict[str, Any]] = {
        "parallel": {"dp": dp, "pp": pp, "tp": tp},
        "model": _model(plan, pp=pp, tp=tp, length=training["sequence_length"]),
        "training": training,
        "hardware": {"nodes": 1, "node": "cpu"},
        "checkpoint": _checkpoint(job),
        "monitor": {"log_every": 1},
    }
    after = {name: _over(before[name], values) for name, values in small.items()}
    return Shrunk({**before, **after}, _changes({name: before[name] for name in small}, after))


def _comparable(view: dict[str, Any]) -> dict[str, Any]:
    """`view` without what only names values that stand there too, and what a job may not say of its model."""
    model, training = dict(view["model"]), dict(view["training"])
    for key in ("preset", "hf", *(_LEARNED_WITHOUT if model["position"] == "learned" else ())):
        model.pop(key, None)
    training.pop("tokens", None)
    return {**view, "model": model, "training": training}


def stand_ins(job: JobSpec, is_here: Callable[[str], bool]) -> tuple[Change, ...]:
    """What `job` gets in the place of data that this machine does not have; `is_here` looks for a path."""
    train, validation = job.data.train, job.data.validation
    is_file = isinstance(validation, str) and share_of(validation) is None
    changes = []
    if train not in BUILTIN and not train.startswith("builtin:") and not is_here(train):
        changes.append(Change("data.train", train, "synthetic", "it is not on this machine"))
        if validation is not None and not is_file:
            why = "random tokens have no end, so no last part of them; nothing is evaluated"
            changes.append(Change("data.validation", validation, None, why))
    if is_file and not is_here(str(validation)):
        after = None if changes else 0.5
        why = "it is not on this machine" + ("; nothing is evaluated" if changes else "")
        changes.append(Change("data.validation", validation, after, why))
    return tuple(changes)


def with_stand_ins(job: JobSpec, changes: Sequence[Change]) -> JobSpec:
    """`job` with the data of `stand_ins`, evaluated as far as there is something to evaluate on."""
    again = {"training.evaluate": EvaluateSection()} if changes else {}
    return changed_job(job, {**{change.path: change.after for change in changes}, **again})


def small_degrees(layout: Layout, most: int) -> tuple[int, int, int]:
    """dp, pp and tp with a product of at most `most`, or of twos where even that is more.

    Replicas go first, then shards: two of them are like many. Stages go last, since one in the middle does
    what neither the first nor the last does.
    """
    sizes = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    for axis, size in sizes.items():
        room = most // prod(other for name, other in sizes.items() if name != axis)
        sizes[axis] = max(min(2, size), min(size, room))
    return sizes["dp"], sizes["pp"], sizes["tp"]


def _model(plan: Plan, *, pp: int, tp: int, length: int) -> dict[str, Any]:
    model = plan.model
    kv_heads = tp * min(2, model.num_kv_heads // plan.layout.tp)
    heads = kv_heads * min(2, model.num_heads // model.num_kv_heads)
    head_size = _head_size(model)
    # The width may differ from all heads together, as it does in Gemma.
    width = heads * head_size * model.hidden_size / (model.num_heads * model.head_size)
    hidden = max(8, round(width / 8) * 8)
    mlp = -(-hidden * model.mlp_size // (model.hidden_size * tp)) * tp
    window = model.sliding_window
    masks = window is not None and window < plan.training.sequence_length
    return {
        "from": None,
        "num_layers": min(model.num_layers, _BLOCKS_A_STAGE * pp),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": head_size,
        "mlp_size": mlp,
        "vocab_size": _vocabulary(plan, tp=tp),
        "max_positions": length,
        "sliding_window": max(1, length // 4) if masks else window,
    }


def _head_size(model: ModelSpec) -> int:
    """The smallest whose rotated part is made of pairs; the model's own is one of these."""
    sizes = [size for size in _HEAD_SIZES if size < model.head_size]
    parts = {size: rotary_size(size, model.rotary_fraction) for size in sizes}
    turns = model.position == "rotary"
    return next(
        (size for size, part in parts.items() if not turns or (part and part % 2 == 0)), model.head_size
    )


def _vocabulary(plan: Plan, *, tp: int) -> int:
    """Enough for all tokens of the data; padded if the model's own is."""
    model, data = plan.model, [plan.data, *([plan.evaluation.data] if plan.evaluation else [])]
    size = max(min(model.vocab_size, _VOCABULARY), *(facts.vocab_size or 0 for facts in data))
    is_padded = padded_vocab(model, plan.layout.tp) > model.vocab_size
    return size + (is_padded and size < model.vocab_size and size % (ROW_ALIGN * tp) == 0)


def _training(job: JobSpec, plan: Plan, *, degrees: tuple[int, int, int]) -> dict[str, Any]:
    wish, layout = plan.training, plan.layout
    dp, pp, tp = degrees
    unit = tp if layout.sequence_parallel else 1
    length = max(unit, min(_SEQUENCE, wish.sequence_length) // unit * unit)
    micro = min(_MICRO_BATCH, layout.micro_batch_size)
    number = min(layout.num_micro_batches, max(2, pp))
    changed: dict[str, Any] = {
        "sequence_length": length,
        "micro_batch_size": micro,
        "global_batch_size": dp * micro * number,
        "steps": STEPS,
        "loss_chunk_size": _chunk_size(plan, tokens=micro * length),
        "compile": False,
        "attention": wish.attention if wish.attention in _KERNELS else "torch",
        "tf32": False,
        "schedule": {"warmup_steps": min(1, wish.schedule.warmup_steps)},
    }
    if job.training.batch_ramp is not None:
        start = dp * micro  # one micro-batch in the first step, all of them from the second on
        rise = {"start": start, "increment": dp * micro * number - start, "samples": start}
        changed["batch_ramp"] = rise
    if plan.evaluation is not None:
        changed["evaluate"] = {"every": STEPS, "batches": "auto"}
    if wish.precision == "fp16":
        changed |= {"precision": "bf16", "loss_scale": "dynamic"}
    if "cpu" not in OPTIMIZERS[wish.optimizer.name].devices:
        changed["optimizer"] = {"name": "adamw"}
    return changed


def _chunk_size(plan: Plan, *, tokens: int) -> ChunkSize:
    """Slices of `tokens`, a micro-batch's, where the job has slices of its own."""
    given = plan.training.loss_chunk_size
    if given == "none" or given >= plan.layout.micro_batch_size * plan.training.sequence_length:
        return given
    return max(1, tokens // 2)


def _checkpoint(job: JobSpec) -> dict[str, Any]:
    wish = job.checkpoint
    if wish.every == "none":
        return {}
    kept = {} if wish.keep_every is None else {"keep_every": min(2, wish.keep_every)}
    return {"every": 1, "on_failure": "stop", "export": "none", **kept}


def _over(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with `changes`, those of a section within it laid over that; None takes a value out."""
    inside = {
        key: _over(before.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return {key: value for key, value in {**before, **inside}.items() if value is not None}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    old, new = dict(leaves(before)), dict(leaves(after))
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return tuple(Change(path, old.get(path), new.get(path), REASONS.get(path, "")) for path in paths)
