"""The weight table against hand-made counts, published totals, and its own laws."""

import pytest

from partrain.model.decoder import decoder_weights, num_layers
from partrain.model.shape import flops_per_token, layer_flops, padded_vocab, parameters, rank_parameters
from partrain.model.weights import local_shape, shard_range, shard_size
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model
from partrain.spec.values import read


def model_of(**fields: object) -> ModelSpec:
    section = read(ModelSection, fields)
    model = resolve_model(section, sequence_length=128, vocab_size=None).model
    assert model is not None
    return model


LLAMA = model_of(
    family="llama", num_layers=2, hidden_size=16, num_heads=4, num_kv_heads=2, mlp_size=24, vocab_size=61
)
GPT2 = model_of(
    family="gpt2", num_layers=2, hidden_size=16, num_heads=4, mlp_size=64, vocab_size=61, max_positions=256
)


def test_a_llama_counts_by_hand() -> None:
    # block: query and output 16 x 16, key and value 8 x 16, three MLP matrices 24 x 16, two norms of 16
    block = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 2 * 16
    assert parameters(LLAMA) == 2 * 61 * 16 + 2 * block + 16


def test_a_tied_gpt2_counts_by_hand() -> None:
    # four attention matrices and two MLP ones with their biases, two norms of weight and bias
    block = 4 * (16 * 16 + 16) + (64 * 16 + 64) + (16 * 64 + 16) + 2 * 2 * 16
    assert parameters(GPT2) == 61 * 16 + 256 * 16 + 2 * block + 2 * 16


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_ranks_of_a_replica_hold_the_model_its_copies_and_its_padding(model: ModelSpec, tp: int) -> None:
    last = num_layers(model) - 1
    bounds = [(0, 1), (2, last)]
    held = tp * sum(rank_parameters(model, tp=tp, first=first, last=end) for first, end in bounds)
    copies = sum(w.numel for w in decoder_weights(model) if w.split is None) * (tp - 1)
    padding = (padded_vocab(model, tp) - model.vocab_size) * model.hidden_size * 2  # embedding and head
    tied = model.vocab_size * model.hidden_size if model.tie_embeddings else 0
    assert held == parameters(model) + copies + padding + tied


def test_a_tie_inside_a_stage_is_held_once() -> None:
    assert rank_parameters(GPT2, tp=1, first=0, last=3) == parameters(GPT2) + 3 * 16  # 61 rows become 64


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
def test_shards_cover_the_vocabulary_once_and_have_equal_sizes(tp: int) -> None:
    head = decoder_weights(LLAMA)[-1]
    ranges = [shard_range(head, tp, shard) for shard in range(tp)]
    assert [index for first, end in ranges for index in range(first, end)] == list(range(61))
    assert shard_size(head, tp) % 8 == 0
    assert local_shape(head, tp) == (shard_size(head, tp), 16)


def test_names_are_unique_and_every_layer_has_both_decay_groups_from_the_first_block_on() -> None:
    for model in (LLAMA, GPT2):
        weights = decoder_weights(model)
        assert len({weight.name for weight in weights}) == len(weights)
        for layer in range(1, num_layers(model)):
            assert {weight.decay for weight in weights if weight.layer == layer} == {True, False}


def test_flops_follow_palm_appendix_b() -> None:
    # 6 a parameter of the matrices and 12 num_layers x hidden_size x sequence_length a token
    gpt2 = model_of(preset="gpt2")
    matrices = 12 * 12 * 768 * 768 + 50257 * 768
    assert flops_per_token(gpt2, 1024) == 6 * matrices + 12 * 12 * 768 * 1024


def test_the_embedding_costs_nothing_and_the_head_its_matrix() -> None:
    flops = layer_flops(LLAMA, 128)
    assert (flops[0], flops[-1]) == (0, 2 * 61 * 16)
    assert len(set(flops[1:-1])) == 1


def test_a_window_shorter_than_the_sequence_takes_its_place_in_attentions_flops() -> None:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 61}
    whole, short = model_of(**sizes), model_of(sliding_window=32, **sizes)
    assert layer_flops(whole, 128)[1] - layer_flops(short, 128)[1] == 4 * (128 - 32) * 16
    assert layer_flops(whole, 32) == layer_flops(short, 32)


def test_norms_of_heads_and_parallel_blocks_count_by_hand() -> None:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 61}
    plain = parameters(model_of(**sizes))
    assert parameters(model_of(qk_norm=True, **sizes)) == plain + 2 * 2 * 4
    assert parameters(model_of(block="parallel", **sizes)) == plain
    assert parameters(model_of(block="parallel_one_norm", **sizes)) == plain - 2 * 16
    assert parameters(model_of(qkv_bias=True, **sizes)) == plain + 2 * 3 * 16
