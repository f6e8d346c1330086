"""Plan -> the configuration that DeepSpeed gets. Every value that has a default there is written out,
since the defaults have changed between releases (gradient_clipping became 1.0 in 0.19.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partrain.layout.layout import Layout
from partrain.plan.plan import TrainingPlan

NEVER = 1_000_000_000
"""Steps between DeepSpeed's own prints; it cannot be told to print nothing."""

MAX_BUCKET = 500_000_000
"""Elements of a communication bucket at most: DeepSpeed's default, which a small model need not allocate."""


MAX_PREFETCH, MAX_LIVE = 50_000_000, 1_000_000_000
"""Parameters that ZeRO 3 gathers ahead of their use, and has gathered at once: DeepSpeed's defaults."""

MAX_PERSISTENT = 100_000
"""Elements of a weight that ZeRO 3 leaves whole on every rank at most: gathering it would cost more than it
saves. DeepSpeed's default, which would leave all of a small model whole."""


def deepspeed_config(
    training: TrainingPlan, layout: Layout, *, rank_parameters: int, raw: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine's configuration; `raw` is the job's `deepspeed` section, checked before.

    `rank_parameters`: parameters of the largest stage's rank, which bound the buckets.
    """
    bucket = min(rank_parameters, MAX_BUCKET)
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.num_micro_batches,
        # Without ZeRO the engine's own clipping knows the first stage only; ours is in the optimizer.
        "gradient_clipping": training.optimizer.grad_clip if layout.zero else 0.0,
        "zero_optimization": {
            "stage": layout.zero,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "overlap_comm": False,
            **_sharded_parameters(layout, rank_parameters),
            **_offloaded(layout),
        },
        # Without the check ZeRO 2 makes an update whose norm is not finite, and spoils the weights.
        "bf16": {"enabled": training.precision == "bf16", "check_grad_overflow": True},
        "fp16": _fp16(training),
        "pipeline": {
            # The defaults assume equal activations on the tensor ranks and would mix sequence shards.
            "pipe_partitioned": False,
            "grad_partitioned": False,
            "activation_checkpoint_interval": 0,
        },
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
        # The optimizer is partrain's to make: DeepSpeed's own are compiled on the user's machine at start.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if training.precision != "fp32":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if training.precision == "fp16" and layout.zero == 1:
        # What was accumulated in fp32 would be rounded to fp16 for its sum over the replicas.
        config["communication_data_type"] = "fp32"
    return merged(config, raw)


def _sharded_parameters(layout: Layout, rank_parameters: int) -> dict[str, Any]:
    if layout.zero < 3:
        return {}
    return {
        "stage3_prefetch_bucket_size": min(rank_parameters, MAX_PREFETCH),
        "stage3_param_persistence_threshold": min(rank_parameters // 1000, MAX_PERSISTENT),
        "stage3_max_live_parameters": MAX_LIVE,
        "stage3_max_reuse_distance": MAX_LIVE,
        "stage3_gather_16bit_weights_on_model_save": False,
        "sub_group_size": MAX_LIVE,
    }


def _offloaded(layout: Layout) -> dict[str, Any]:
    host = {"device": "cpu", "pin_memory": True}
    if layout.offload == "none":
        return {}
    return {"offload_optimizer": host, **({"offload_param": host} if layout.offload == "parameters" else {})}


def _fp16(training: TrainingPlan) -> dict[str, Any]:
    if training.precision != "fp16":
        return {"enabled": False}
    return {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0 if training.loss_scale == "dynamic" else training.loss_scale,  # 0 is dynamic
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
        "fp16_master_weights_and_grads": False,
    }


def merged(config: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `raw` laid over it, section by section."""
    result = dict(config)
    for key, value in raw.items():
        ours = result.get(key)
        both = isinstance(ours, Mapping) and isinstance(value, Mapping)
        result[key] = merged(ours, value) if both else value  # type: ignore[arg-type]
    return result
