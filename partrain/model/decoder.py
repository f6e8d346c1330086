"""The weight table of the decoder family, driven by the fields of ModelSpec.

Layers in pipeline order: the embedding, the blocks, the head with its norm. Names do not depend on any
layout. Initial values as in GPT-2 (Radford et al. 2019, section 2.3): normal, with the projections back
into the residual stream scaled by 1 / sqrt(2 num_layers).
"""

from __future__ import annotations

from functools import lru_cache

from partrain.model.weights import ONES, ZEROS, Initial, Weight
from partrain.spec.model import GATED, ModelSpec

EMBEDDING = "embedding.weight"
POSITIONS = "positions.weight"
HEAD = "head.weight"


def num_layers(model: ModelSpec) -> int:
    """Pipeline layers: the blocks, the embedding before and the head after them."""
    return model.num_layers + 2


@lru_cache(maxsize=8)
def decoder_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Every weight of the model in layer order; a tied head appears once more, with `tied_to`."""
    weights = list(_embedding(model))
    for block in range(model.num_layers):
        weights += _block(model, block)
    return (*weights, *_head(model))


def block_prefix(block: int) -> str:
    """First part of the names of a block's weights."""
    return f"layers.{block}"


def _embedding(model: ModelSpec) -> list[Weight]:
    std = Initial("normal", model.init_std)
    shape = (model.vocab_size, model.hidden_size)
    weights = [Weight(EMBEDDING, 0, shape, std, split=0, padded=True, decay=True)]
    if model.position == "learned":
        weights.append(Weight(POSITIONS, 0, (model.max_positions, model.hidden_size), std, decay=True))
    return weights


def _head(model: ModelSpec) -> list[Weight]:
    layer = num_layers(model) - 1
    tied_to = EMBEDDING if model.tie_embeddings else None
    shape = (model.vocab_size, model.hidden_size)
    std = Initial("normal", model.init_std)
    head = Weight(HEAD, layer, shape, std, split=0, padded=True, decay=True, tied_to=tied_to)
    return [*_norm(model, layer, "final_norm", model.hidden_size), head]


def _block(model: ModelSpec, block: int) -> list[Weight]:
    layer, prefix = block + 1, block_prefix(block)
    query, key = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    mlp = model.mlp_size
    weights = _norm(model, layer, f"{prefix}.attention_norm", model.hidden_size)
    for name, size in (("query", query), ("key", key), ("value", key)):
        weights += _column(model, layer, f"{prefix}.attention.{name}", size, bias=model.qkv_bias)
    for name in ("query_norm", "key_norm") if model.qk_norm else ():
        weights += _norm(model, layer, f"{prefix}.attention.{name}", model.head_size)
    weights += _row(model, layer, f"{prefix}.attention.output", query)
    if model.block != "parallel_one_norm":
        weights += _norm(model, layer, f"{prefix}.mlp_norm", model.hidden_size)
    for name in ("gate", "up") if model.activation in GATED else ("up",):
        weights += _column(model, layer, f"{prefix}.mlp.{name}", mlp, bias=model.bias)
    weights += _row(model, layer, f"{prefix}.mlp.down", mlp)
    return weights


def _norm(model: ModelSpec, layer: int, name: str, size: int) -> list[Weight]:
    weights = [Weight(f"{name}.weight", layer, (size,), ZEROS if model.zero_centered_norm else ONES)]
    if model.norm == "layernorm":
        weights.append(Weight(f"{name}.bias", layer, (size,), ZEROS))
    return weights


def _column(model: ModelSpec, layer: int, name: str, size: int, *, bias: bool) -> list[Weight]:
    """A linear layer whose outputs, and so its bias, are cut over the tensor group."""
    std = Initial("normal", model.init_std)
    weights = [Weight(f"{name}.weight", layer, (size, model.hidden_size), std, split=0, decay=True)]
    if bias:
        weights.append(Weight(f"{name}.bias", layer, (size,), ZEROS, split=0))
    return weights


def _row(model: ModelSpec, layer: int, name: str, size: int) -> list[Weight]:
    """A linear layer whose inputs are cut over the tensor group; its bias is added once, after the sum."""
    std = Initial("normal", model.init_std / (2 * model.num_layers) ** 0.5)
    weights = [Weight(f"{name}.weight", layer, (model.hidden_size, size), std, split=1, decay=True)]
    if model.bias:
        weights.append(Weight(f"{name}.bias", layer, (model.hidden_size,), ZEROS))
    return weights
