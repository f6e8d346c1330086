"""The job with every value decided, under the key paths of the job file, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partrain.plan.plan import EvaluationPlan, Plan
from partrain.spec.job import JobSpec
from partrain.spec.values import plain


def resolved_job(job: JobSpec, plan: Plan) -> dict[str, Any]:
    """`job` as plain values, section by section, every default written out and every `auto` decided."""
    view: dict[str, Any] = plain(job)
    layout, training = plan.layout, plan.training
    view["model"] = {
        **({"preset": job.model.preset} if job.model.preset else {}),
        **({"hf": job.model.hf} if job.model.hf else {}),
        **({"from": job.model.from_} if job.model.from_ else {}),
        **plain(plan.model),
    }
    view["training"] |= {
        "steps": training.steps,
        "micro_batch_size": layout.micro_batch_size,
        "precision": training.precision,
        "recompute": layout.recompute,
        "loss_chunk_size": training.loss_chunk_size,
        "optimizer": _without_none(plain(training.optimizer)),
        "compile": training.compile,
        "attention": training.attention,
    }
    if plan.evaluation is None:
        del view["training"]["evaluate"]
    else:
        view["training"]["evaluate"] = _evaluate(plan.evaluation, batch=layout.global_batch_size)
    view["parallel"] |= {
        "dp": layout.dp,
        "pp": layout.pp,
        "tp": layout.tp,
        "sequence_parallel": layout.sequence_parallel,
        "zero": layout.zero,
        "offload": layout.offload,
    }
    machine = plan.machine
    there = "cpu" if machine.device == "cpu" else f"{machine.num_devices}x {machine.name}"
    view["hardware"]["node"] = _without_none(plain(job.hardware.node or there))
    view["launch"]["env"] = dict(plan.env)
    return {key: _without_none(value) for key, value in view.items()}


def _evaluate(wish: EvaluationPlan, *, batch: int) -> dict[str, Any]:
    """When and how much: only a whole set may be no multiple of a `batch` of sequences."""
    batches, rest = divmod(wish.num_sequences, batch)
    return {"every": wish.every, "batches": "all" if rest else batches}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


def leaves(view: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Key path and value of everything in `view` that is not a mapping.

    >>> list(leaves({"name": "demo", "parallel": {"pp": 2}}))
    [('name', 'demo'), ('parallel.pp', 2)]
    """
    for key, value in view.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def origins_of(view: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, str]:
    """Origin of every leaf of `view`: its own in `found`, a part's or a whole's, else `default`."""
    return {path: _origin(path, found) for path, _ in leaves(view)}


def _origin(path: str, found: Mapping[str, str]) -> str:
    if f"{path}.0" in found:
        return found[f"{path}.0"]
    while path:
        if path in found:
            return found[path]
        path = path.rpartition(".")[0]
    return "default"
