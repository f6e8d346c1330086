"""Parameters and FLOPs, summed from the weight table."""

from __future__ import annotations

from functools import lru_cache

from partrain.model.decoder import EMBEDDING, decoder_weights, num_layers
from partrain.model.weights import Weight, local_numel, shard_size
from partrain.spec.model import ModelSpec


@lru_cache(maxsize=64)
def parameters(model: ModelSpec) -> int:
    """Parameters of the whole model, each counted once: ties once, padding not at all."""
    return sum(weight.numel for weight in decoder_weights(model) if weight.tied_to is None)


@lru_cache(maxsize=4096)
def stage_weights(model: ModelSpec, first: int, last: int) -> tuple[Weight, ...]:
    """Weights that the layers `first` to `last` (inclusive) hold; a tie inside them is held once."""
    held = [weight for weight in decoder_weights(model) if first <= weight.layer <= last]
    names = {weight.name for weight in held}
    return tuple(weight for weight in held if weight.tied_to not in names)


@lru_cache(maxsize=4096)
def rank_parameters(model: ModelSpec, *, tp: int, first: int, last: int) -> int:
    """Parameters that each rank of a stage holds, padding included."""
    return sum(local_numel(weight, tp) for weight in stage_weights(model, first, last))


def padded_vocab(model: ModelSpec, tp: int) -> int:
    """Rows of the embedding over all shards, padding included."""
    embedding = next(weight for weight in decoder_weights(model) if weight.name == EMBEDDING)
    return shard_size(embedding, tp) * tp


def block_activations(model: ModelSpec, *, tp: int, recompute: str) -> float:
    """Elements a token that a rank keeps of a block for the backward pass; `full` keeps its input alone.

    What a block hands to a norm, a matrix, the attention kernel or a product is kept: inputs and outputs of
    its two norms, query, key, value and output of the attention, the inner vectors of the MLP.
    """
    if recompute == "full":
        return model.hidden_size
    attention = 2 * (model.num_heads + model.num_kv_heads) * model.head_size
    mlp = (4 if model.activation == "swiglu" else 2) * model.mlp_size
    return 4 * model.hidden_size + (attention + mlp) / tp


@lru_cache(maxsize=64)
def layer_flops(model: ModelSpec, sequence_length: int) -> tuple[float, ...]:
    """Forward FLOPs a token of each pipeline layer.

    2 a matrix element (a multiplication and an addition) and, for attention over the whole sequence,
    4 sequence_length x num_heads x head_size a block (Chowdhery et al. 2022, PaLM, appendix B). Skips
    norms, activations and softmax (below 1 % from hidden size 1024 on), and does not halve attention for
    the causal mask, as that definition of MFU does not. With a sliding window shorter than the sequence the
    window takes the sequence's place there: the most tokens that any token attends to.
    """
    flops = [0.0] * num_layers(model)
    for weight in decoder_weights(model):
        if len(weight.shape) == 2 and weight.layer > 0:
            flops[weight.layer] += 2.0 * weight.numel
    attended = min(sequence_length, model.sliding_window or sequence_length)
    for block in range(model.num_layers):
        flops[block + 1] += 4.0 * attended * model.num_heads * model.head_size
    return tuple(flops)


def flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """Forward and backward FLOPs a token: the backward pass does twice the forward's work."""
    return 3.0 * sum(layer_flops(model, sequence_length))
