"""What other estimators say of the same rows: their published formulas, on a row's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.memory_model.megatron import Layers, layers_of
from bench.memory_model.megatron_stage import parameters, stage_of
from bench.memory_model.rows import Row, Shape, shape_of


def _dense_layers(row: Row, layers: Layers, blocks: int) -> int:
    return blocks if layers.experts is None else row.count("dense_layers", 0)


def deepspeed_estimator(row: Row) -> int:
    """DeepSpeed 0.19.8 without offload, with a rank's share before data parallelism as the model.

    estimate_zero2_model_states_mem_needs (2 P + 18 P / N, runtime/zero/stage_1_and_2.py), for lower stages
    too; estimate_zero3_model_states_mem_needs (4 x largest layer + 18 P / N, runtime/zero/stage3.py).
    """
    shape = shape_of(row)
    layers, stage = layers_of(row, shape), stage_of(row, shape)
    total = sum(parameters(layers, stage, _dense_layers(row, layers, stage.blocks)))
    if row["zero_stage"] == "3":
        return 4 * shape.vocab // shape.tp * shape.hidden + 18 * total // shape.dp
    return 2 * total + 18 * total // (shape.dp if row["zero_stage"] in ("1", "2") else 1)


def megatron_report(row: Row) -> int:
    """Megatron-LM's report_theoretical_memory (megatron/training/theoretical_memory_usage.py)."""
    shape = shape_of(row)
    exact = shape.sequence_parallel and shape.recompute == "selective"
    activations = _with_sequence_parallelism(shape) if exact else _without_sequence_parallelism(shape)
    return round(_states(row, shape) + activations)


def _states(row: Row, shape: Shape) -> float:
    layers = layers_of(row, shape)
    h, gate, norm = shape.hidden, 3 / 2 if shape.gated else 1, 1 if shape.rms else 2
    if layers.mla is None:
        attention = 2 * h * (1 + shape.kv_heads / shape.heads) * shape.head_dim * shape.heads
    else:
        mla = layers.mla
        attention = mla.query_rank * (h + shape.heads * (mla.nope + mla.rope) + norm) + h * mla.rope
        attention += mla.kv_rank * (h + shape.heads * (mla.nope + mla.value) + norm)
        attention += shape.heads * mla.value * h
    dense = 2 * h * (shape.mlp * gate + norm) + attention
    sparse = 0.0
    if layers.experts is not None:
        experts = layers.experts
        widths = experts.width * experts.count + experts.shared
        sparse = 2 * h * (widths * gate + norm) + attention
    num_dense = _dense_layers(row, layers, shape.layers)
    block = dense * num_dense + sparse * (shape.layers - num_dense) + norm * h
    table = h * shape.vocab
    heads = 2 if shape.pp == 1 and not shape.tied else 1
    loaded = (block / shape.pp + heads * table) / shape.tp
    return loaded * (6 + 12 / shape.dp if row["zero_stage"] == "1" else 18)


def _scheduled(shape: Shape, activations: float) -> float:
    """The embedding's part, and the factors of the pipeline's schedule."""
    activations += (8 + shape.hidden) * shape.sequence * shape.sequences * shape.pp
    if shape.chunks > 1:
        return activations * (1 + (shape.pp - 1) / (shape.pp * shape.chunks))
    return activations * min(1, shape.micro_batches / shape.pp)


def _with_sequence_parallelism(shape: Shape) -> float:
    tokens, h = shape.sequence * shape.sequences, shape.hidden
    found = _scheduled(shape, tokens * h * (18 + 4 * shape.mlp / h) * shape.layers)
    if shape.pp == 1:
        found += tokens * h * 4 * (1 + shape.vocab / h)
    return found / shape.tp


def _without_sequence_parallelism(shape: Shape) -> float:
    tokens, h = shape.sequence * shape.sequences, shape.hidden
    found = _scheduled(shape, tokens * h * (10 + 24 / shape.tp) * shape.layers)
    if shape.pp == 1:
        found += 2 * tokens * (shape.vocab / shape.tp + h)
    return found * 1.05


PEERS: Mapping[str, Callable[[Row], int]] = {
    "DeepSpeed's estimator": deepspeed_estimator,
    "Megatron's report": megatron_report,
}
