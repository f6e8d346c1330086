"""The `deepspeed` section: which raw keys may be given, and why the others may not.

Read off DeepSpeed 0.19.8, `runtime/config.py` and `runtime/zero/config.py`. DeepSpeed itself ignores unknown
top-level keys, and stops on all ranks over a number written as text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from partrain.errors import Fault
from partrain.spec.faults import came, fix_words
from partrain.spec.forms import forms
from partrain.spec.keypath import Loc, dotted
from partrain.spec.section import Count, Positive, Text
from partrain.spec.tree import Tree
from partrain.spec.values import Misfit, read
from partrain.spec.words import in_words

ALLOWED: Mapping[str, Any] = {
    "zero_optimization.reduce_bucket_size": Count,
    "zero_optimization.allgather_bucket_size": Count,
    "zero_optimization.overlap_comm": bool,
    "zero_optimization.contiguous_gradients": bool,
    "zero_optimization.round_robin_gradients": bool,
    "zero_optimization.reduce_scatter": bool,
    "zero_optimization.allgather_partitions": bool,
    "zero_optimization.use_multi_rank_bucket_allreduce": bool,
    "comms_logger.enabled": bool,
    "comms_logger.verbose": bool,
    "comms_logger.prof_all": bool,
    "comms_logger.debug": bool,
    "comms_logger.prof_ops": tuple[Text, ...],
    "communication_data_type": Literal["fp32", "bf16"],
    "prescale_gradients": bool,
    "gradient_predivide_factor": Positive,
    "dump_state": bool,
    "memory_breakdown": bool,
    "steps_per_print": Count,
}
"""Keys that may be given, and what they may hold; none of them changes what is trained."""

DECIDED: Mapping[str, str] = {
    "train_batch_size": "training.global_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.global_batch_size and training.micro_batch_size",
    "optimizer": "training.optimizer",
    "scheduler": "training.schedule",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "torch_autocast": "training.precision",
    "data_types": "training.precision",
    "gradient_clipping": "training.optimizer.grad_clip",
    "zero_optimization.stage": "parallel.zero",
    "zero_optimization.offload_optimizer": "parallel.offload",
    "zero_optimization.offload_param": "parallel.offload",
    "zero_optimization.cpu_offload": "parallel.offload",
    "zero_allow_untested_optimizer": "training.optimizer",
    "zero_force_ds_cpu_optimizer": "training.optimizer",
    "pipeline": "parallel.pp",
    "tensor_parallel": "parallel.tp",
    "activation_checkpointing": "training.recompute",
    "tensorboard": "monitor.log_every",
    "wandb": "monitor.log_every",
    "csv_monitor": "monitor.log_every",
    "comet": "monitor.log_every",
    "checkpoint": "checkpoint",
}
"""Keys that follow from the plan, and where to say it."""

REMOVED: Mapping[str, str] = {
    "elasticity": "training.global_batch_size and parallel.dp",
    "amp": "training.precision",
    "nebula": "leave it out",
    "compression_training": "leave it out",
    "quantize_training": "leave it out",
    "sparse_gradients": "leave it out",
    "eigenvalue": "leave it out",
    "sparse_attention": "leave it out",
    "graph_harvesting": "leave it out",
    "curriculum_learning": "leave it out",
    "progressive_layer_drop": "leave it out",
    "zero_optimization.mics_shard_size": "leave it out",
    "zero_optimization.mics_hierarchical_params_gather": "leave it out",
    "zero_optimization.zeropp_loco_param": "leave it out",
}
"""Keys over which DeepSpeed from 0.19.7 on stops, and what to use."""

HARMFUL: Mapping[str, str] = {
    "wall_clock_breakdown": "it crashes DeepSpeed's pipeline engine",
    "flops_profiler": "it crashes DeepSpeed's pipeline engine",
}
"""Keys that exist and must not be used, and why."""


def deepspeed_faults(tree: Tree) -> Iterator[tuple[Loc, Fault]]:
    """A fault for everything in the `deepspeed` section that may not be there."""
    section = tree.data.get("deepspeed")
    if isinstance(section, dict):
        yield from _section_faults(section, ("deepspeed",), tree)


def _section_faults(section: Mapping[str, Any], loc: Loc, tree: Tree) -> Iterator[tuple[Loc, Fault]]:
    for key, value in section.items():
        at = (*loc, key)
        raw = dotted(at[1:])
        is_group = any(name.startswith(raw + ".") for name in ALLOWED)
        if raw in ALLOWED:
            yield from _value_faults(value, at, tree)
        elif is_group and isinstance(value, dict):
            yield from _section_faults(value, at, tree)
        elif is_group:
            yield at, Fault(dotted(at), came(value), f"a section of {_keys_in(raw)}", "", tree.places.get(at))
        else:
            yield at, _refused(raw, at, tree)


def _value_faults(value: Any, at: Loc, tree: Tree) -> Iterator[tuple[Loc, Fault]]:
    kind = ALLOWED[dotted(at[1:])]
    try:
        read(kind, value)
    except Misfit:
        allowed = forms(kind)
        fix = fix_words(at, allowed, value)
        yield at, Fault(dotted(at), came(value), in_words(allowed), fix, tree.places.get(at))


def _refused(raw: str, at: Loc, tree: Tree) -> Fault:
    place = tree.keys.get(at)
    if raw in DECIDED:
        return Fault(dotted(at), "decided by the plan", "", DECIDED[raw], place)
    if raw in REMOVED:
        return Fault(dotted(at), "removed from DeepSpeed in 0.19.7", "", REMOVED[raw], place)
    if raw in HARMFUL:
        return Fault(dotted(at), HARMFUL[raw], "", "leave it out", place)
    group = raw.rpartition(".")[0]
    known = {*ALLOWED, *DECIDED, *REMOVED, *HARMFUL}
    names = {name if group else name.partition(".")[0] for name in known if name.startswith(group)}
    close = difflib.get_close_matches(raw, names, n=1, cutoff=0.7)
    fix = f"did you mean `{close[0].rpartition('.')[2]}`?" if close else ""
    near = close[0] if close else ""
    if near in DECIDED:
        fix += f" it is decided by the plan: {DECIDED[near]}"
    return Fault(dotted(at), "not among the DeepSpeed keys that a job may give", _keys_in(group), fix, place)


def _keys_in(group: str) -> str:
    """The keys allowed in the group, or at the top of the section for an empty one."""
    start = f"{group}." if group else ""
    found = (name.removeprefix(start).partition(".")[0] for name in ALLOWED if name.startswith(start))
    return ", ".join(dict.fromkeys(found))
