"""What of a job decides its memory and may be changed to make it fit, every value decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from partrain.layout.layout import ZeroStage
from partrain.layout.proposal import Proposal
from partrain.plan.judge import proposal_of
from partrain.plan.plan import Plan
from partrain.spec.job import JobSpec
from partrain.spec.parallel import Offload
from partrain.spec.training import ChunkSize, Recompute

PATHS: Mapping[str, str] = {
    "micro_batch_size": "training.micro_batch_size",
    "recompute": "training.recompute",
    "loss_chunk_size": "training.loss_chunk_size",
    "dp": "parallel.dp",
    "pp": "parallel.pp",
    "tp": "parallel.tp",
    "sequence_parallel": "parallel.sequence_parallel",
    "zero": "parallel.zero",
    "offload": "parallel.offload",
    "nodes": "hardware.nodes",
    "sequence_length": "training.sequence_length",
}
"""Field of a setting -> where a job has it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Values for the keys in `PATHS`."""

    micro_batch_size: int
    recompute: Recompute
    loss_chunk_size: ChunkSize
    dp: int
    pp: int
    tp: int
    sequence_parallel: bool
    zero: ZeroStage
    offload: Offload
    nodes: int
    sequence_length: int

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp * self.pp * self.tp


def setting_of(plan: Plan) -> Setting:
    """What `plan` has decided."""
    layout, training = plan.layout, plan.training
    return Setting(
        micro_batch_size=layout.micro_batch_size,
        recompute=layout.recompute,
        loss_chunk_size=training.loss_chunk_size,
        dp=layout.dp,
        pp=layout.pp,
        tp=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        zero=layout.zero,
        offload=layout.offload,
        nodes=plan.nodes,
        sequence_length=training.sequence_length,
    )


def proposed(setting: Setting, plan: Plan) -> Proposal:
    """`setting` with all else as in `plan`, to be judged by the rules."""
    names = {key.name for key in fields(Proposal)} & PATHS.keys()
    return replace(proposal_of(plan), **{name: getattr(setting, name) for name in names})


def differences(before: Setting, after: Setting) -> dict[str, Any]:
    """Key path -> value of all in which `after` differs, in the order of `PATHS`."""
    names = [key.name for key in fields(Setting) if getattr(before, key.name) != getattr(after, key.name)]
    return {PATHS[name]: getattr(after, name) for name in names}


def changed_job(job: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """`job` with a value at each key path.

    >>> from partrain.spec.hardware import HardwareSection
    >>> changed_job(HardwareSection(), {"nodes": 2}).nodes
    2
    """
    for path, value in changes.items():
        job = _changed(job, path.split("."), value)
    return job


def _changed(section: Any, keys: list[str], value: Any) -> Any:
    key, *rest = keys
    assert is_dataclass(section)
    assert not isinstance(section, type)
    inside = getattr(section, key)
    return replace(section, **{key: _changed(inside, rest, value) if rest else value})
