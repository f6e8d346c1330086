"""Keys that no job has: the key that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from partrain.spec.forms import key_paths, section_keys
from partrain.spec.planned import PLANNED_KEYS

ELSEWHERE: Mapping[str, str] = {
    "train_batch_size": "training.global_batch_size",
    "batch_size": "training.global_batch_size",
    "micro_batch": "training.micro_batch_size",
    "mbs": "training.micro_batch_size",
    "gbs": "training.global_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "per_device_train_batch_size": "training.micro_batch_size",
    "max_seq_len": "training.sequence_length",
    "max_seq_length": "training.sequence_length",
    "seq_len": "training.sequence_length",
    "seq_length": "training.sequence_length",
    "block_size": "training.sequence_length",
    "context_length": "training.sequence_length",
    "max_steps": "training.steps",
    "train_iters": "training.steps",
    "num_steps": "training.steps",
    "train_tokens": "training.tokens",
    "num_train_epochs": "training.epochs",
    "dtype": "training.precision",
    "mixed_precision": "training.precision",
    "activation_checkpointing": "training.recompute",
    "gradient_checkpointing": "training.recompute",
    "label_smoothing_factor": "training.label_smoothing",
    "z_loss_coefficient": "training.z_loss",
    "learning_rate": "training.optimizer.lr",
    "max_lr": "training.optimizer.lr",
    "max_grad_norm": "training.optimizer.grad_clip",
    "gradient_clipping": "training.optimizer.grad_clip",
    "clip_grad": "training.optimizer.grad_clip",
    "adam_eps": "training.optimizer.eps",
    "adam_epsilon": "training.optimizer.eps",
    "epsilon": "training.optimizer.eps",
    "adam_beta1": "training.optimizer.betas",
    "adam_beta2": "training.optimizer.betas",
    "attn_implementation": "training.attention",
    "use_flash_attn": "training.attention",
    "allow_tf32": "training.tf32",
    "lr_scheduler": "training.schedule",
    "scheduler": "training.schedule",
    "warmup": "training.schedule.warmup_steps",
    "lr_warmup_steps": "training.schedule.warmup_steps",
    "lr_warmup_iters": "training.schedule.warmup_steps",
    "num_warmup_steps": "training.schedule.warmup_steps",
    "n_layers": "model.num_layers",
    "n_layer": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "n_heads": "model.num_heads",
    "n_head": "model.num_heads",
    "num_attention_heads": "model.num_heads",
    "num_key_value_heads": "model.num_kv_heads",
    "n_kv_heads": "model.num_kv_heads",
    "num_query_groups": "model.num_kv_heads",
    "head_dim": "model.head_size",
    "n_embd": "model.hidden_size",
    "d_model": "model.hidden_size",
    "intermediate_size": "model.mlp_size",
    "ffn_hidden_size": "model.mlp_size",
    "max_position_embeddings": "model.max_positions",
    "n_positions": "model.max_positions",
    "tie_word_embeddings": "model.tie_embeddings",
    "resid_pdrop": "model.dropout",
    "hidden_dropout": "model.dropout",
    "attn_pdrop": "model.attention_dropout",
    "rms_norm_eps": "model.norm_eps",
    "layer_norm_epsilon": "model.norm_eps",
    "tensor_parallel_size": "parallel.tp",
    "tensor_model_parallel_size": "parallel.tp",
    "tensor_parallel": "parallel.tp",
    "pipeline_parallel_size": "parallel.pp",
    "pipeline_model_parallel_size": "parallel.pp",
    "pipeline_parallel": "parallel.pp",
    "data_parallel_size": "parallel.dp",
    "data_parallel": "parallel.dp",
    "zero_stage": "parallel.zero",
    "zero_optimization": "parallel.zero",
    "cpu_offload": "parallel.offload",
    "offload_optimizer": "parallel.offload",
    "offload_param": "parallel.offload",
    "num_nodes": "hardware.nodes",
    "nnodes": "hardware.nodes",
    "log_interval": "monitor.log_every",
    "rampup_batch_size": "training.batch_ramp",
    "batch_size_warmup": "training.batch_ramp",
    "evaluation": "training.evaluate",
    "eval": "training.evaluate",
    "eval_interval": "training.evaluate.every",
    "eval_every": "training.evaluate.every",
    "eval_steps": "training.evaluate.every",
    "eval_iters": "training.evaluate.batches",
    "valid": "data.validation",
    "valid_data_path": "data.validation",
    "eval_data": "data.validation",
    "logging_steps": "monitor.log_every",
    "output_dir": "run.dir",
    "save_steps": "checkpoint.every",
    "save_interval": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "dataset": "data.train",
    "dataset_path": "data.train",
}
"""What other tools call it -> where it is here."""

ADVICE: Mapping[str, str] = {
    "gradient_accumulation_steps": "leave it out: it is global_batch_size / (micro_batch_size x dp)",
    "bf16": "training.precision: bf16",
    "fp16": "training.precision: fp16",
    "fp32": "training.precision: fp32",
    "fsdp": "parallel.zero",
    "num_workers": "training.prefetch: micro-batches that one thread reads ahead",
    "dataloader_num_workers": "training.prefetch: micro-batches that one thread reads ahead",
    "world_size": "leave it out: it is dp x pp x tp",
    "gpus": "hardware.node: 8xa100-80g, or leave it out for this machine",
    "num_gpus": "hardware.node: 8xa100-80g, or leave it out for this machine",
    "gpus_per_node": "hardware.node: 8xa100-80g, or leave it out for this machine",
}
"""What has no key of its own here -> what to write."""


class Meant(NamedTuple):
    """The key that was probably meant."""

    fix: str
    path: tuple[str, ...] | None = None


def meant(section: tuple[str, ...], key: str) -> Meant:
    """What the unknown `key` of `section` was probably meant to be; an empty fix when nothing is near."""
    bare = _bare(key)
    siblings = {_bare(name): name for name in section_keys(section)}
    elsewhere: dict[str, tuple[str, ...]] = {}
    for path in (*key_paths(), *PLANNED_KEYS):
        elsewhere.setdefault(_bare(path[-1]), path)
    if bare in siblings:
        return _sibling(section, siblings[bare])
    if bare in _ELSEWHERE:
        path = tuple(_ELSEWHERE[bare].split("."))
        return Meant(f"here it is called {_written(section, path)}", path)
    if bare in _ADVICE:
        return Meant(_ADVICE[bare])
    if bare in elsewhere:
        path = elsewhere[bare]
        home = ".".join(path[:-1])
        return Meant(
            f"it belongs to `{home}`: {'.'.join(path)}"
            if home
            else f"it belongs to the top level: {path[-1]}",
            path,
        )
    close = difflib.get_close_matches(bare, siblings, n=1, cutoff=0.7)
    if close:
        return _sibling(section, siblings[close[0]])
    far = difflib.get_close_matches(bare, elsewhere, n=1, cutoff=0.85)
    return Meant(f"did you mean {'.'.join(elsewhere[far[0]])}?", elsewhere[far[0]]) if far else Meant("")


def _sibling(section: tuple[str, ...], key: str) -> Meant:
    return Meant(f"did you mean `{key}`?", (*section, key))


def _written(section: tuple[str, ...], path: tuple[str, ...]) -> str:
    return f"`{path[-1]}`" if path[:-1] == section else ".".join(path)


def _bare(key: str) -> str:
    """`key` without what spelling habits differ in: case, underscores, hyphens."""
    return re.sub(r"[\W_]+", "", key).lower()


_ELSEWHERE = {_bare(key): path for key, path in ELSEWHERE.items()}
_ADVICE = {_bare(key): advice for key, advice in ADVICE.items()}
