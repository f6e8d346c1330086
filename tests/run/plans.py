"""A small plan with every value spelled out."""

from __future__ import annotations

from typing import Any

from partrain.layout.layout import Layout
from partrain.plan.plan import Plan, StagePlan, TrainingPlan
from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.guard import GuardSection
from partrain.spec.model import ModelSpec
from partrain.spec.optimizers import OptimizerSection, resolve_optimizer
from partrain.spec.training import ScheduleSection

MODEL = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=4,
    head_size=8,
    mlp_size=64,
    vocab_size=256,
    max_positions=64,
    norm="rmsnorm",
    norm_eps=1e-5,
    activation="swiglu",
    position="rotary",
    rope_theta=1e4,
    rope_scaling=None,
    rotary_fraction=1.0,
    qkv_bias=False,
    scale_embeddings=False,
    zero_centered_norm=False,
    qk_norm=False,
    block="sequential",
    sliding_window=None,
    bias=False,
    tie_embeddings=False,
    init_std=0.02,
)


def machine(device: str = "cpu", num_devices: int = 8) -> MachineFacts:
    return MachineFacts(
        device=device,
        name=device,
        num_devices=num_devices,
        memory_bytes=None,
        bf16_flops=None,
        fp32_flops=None,
        origin="a test",
    )


def a_plan(*, steps: int = 10, tp: int = 2, device: str = "cpu", **changed: Any) -> Plan:
    """pp 2 and `tp` tensor shards on 8 devices; other fields as `changed` says."""
    layout = Layout(
        dp=1,
        pp=2,
        tp=tp,
        zero=1,
        sequence_parallel=False,
        micro_batch_size=1,
        num_micro_batches=2,
        recompute="none",
        stage_bounds=(0, 2, 4),
    )
    training = TrainingPlan(
        sequence_length=16,
        steps=steps,
        precision="fp32",
        loss_scale="dynamic",
        loss_chunk_size="none",
        label_smoothing=0.0,
        z_loss=0.0,
        seed=1,
        optimizer=resolve_optimizer(OptimizerSection()),
        schedule=ScheduleSection(),
    )
    values: dict[str, Any] = {
        "version": 1,
        "partrain": "0.1.0",
        "name": "demo",
        "model": MODEL,
        "data": DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None),
        "training": training,
        "layout": layout,
        "nodes": 1,
        "machine": machine(device),
        "memory_budget": 0.92,
        "stages": tuple(StagePlan(stage=s, first=2 * s, last=2 * s + 1, parameters=1) for s in range(2)),
        "parameters": 1,
        "flops_per_token": 6.0,
        "guard": GuardSection(),
        "deepspeed": {"zero_optimization": {"stage": 1}},
        "env": {},
        "run_dir": "runs",
        "log_every": 1,
        "checkpoint": CheckpointSection(),
        "origins": {},
        "notes": (),
    }
    return Plan(**{**values, **changed})
