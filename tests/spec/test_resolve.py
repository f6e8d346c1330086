from typing import Any

import pytest

from partrain.spec.forms import keys_of
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import ResolvedModel, resolve_model
from partrain.spec.values import read

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 96, "num_heads": 6}


def resolve(*, sequence_length: int = 64, vocab_size: int | None = 256, **fields: Any) -> ResolvedModel:
    section = read(ModelSection, fields)
    return resolve_model(section, sequence_length=sequence_length, vocab_size=vocab_size)


def model(**fields: Any) -> ModelSpec:
    resolved = resolve(**fields)
    assert resolved.reasons == ()
    assert resolved.model is not None
    return resolved.model


def messages(resolved: ResolvedModel) -> list[str]:
    assert resolved.model is None
    return [reason.message for reason in resolved.reasons]


def test_three_fields_and_the_data_make_a_llama() -> None:
    found = model(**SMALL)
    assert (found.family, found.norm, found.activation, found.position) == (
        "llama",
        "rmsnorm",
        "swiglu",
        "rotary",
    )
    assert (found.num_kv_heads, found.head_size, found.vocab_size, found.max_positions) == (6, 16, 256, 64)
    assert not found.bias
    assert not found.tie_embeddings


def test_the_gpt2_family_has_its_own_defaults() -> None:
    found = model(family="gpt2", **SMALL)
    assert (found.norm, found.activation, found.position) == ("layernorm", "gelu_tanh", "learned")
    assert found.bias
    assert found.tie_embeddings
    assert found.mlp_size == 4 * 96


def test_swiglus_width_is_8_thirds_rounded_up_to_256() -> None:
    # Llama 2 7B: 8/3 x 4096 = 10922.7, up to 43 x 256 = 11008, which is its published size.
    assert model(num_layers=1, hidden_size=4096, num_heads=32).mlp_size == 11008
    # 8/3 x 96 = 256 exactly.
    assert model(**SMALL).mlp_size == 256


def test_a_head_size_may_be_given_that_is_not_width_over_heads() -> None:
    assert model(num_layers=2, hidden_size=100, num_heads=7, head_size=16).head_size == 16


def test_a_given_field_replaces_the_presets() -> None:
    resolved = resolve(preset="llama-3.1-8b", num_layers=4)
    assert resolved.model is not None
    assert resolved.model.num_layers == 4
    assert resolved.model.hidden_size == 4096
    assert resolved.origins["model.num_layers"] == "given"
    assert resolved.origins["model.hidden_size"] == "preset llama-3.1-8b"


def test_a_field_that_follows_from_a_changed_one_follows() -> None:
    assert model(preset="gpt2", hidden_size=384).head_size == 384 // 12


def test_every_field_has_an_origin() -> None:
    for resolved in (resolve(preset="tiny"), resolve(**SMALL), resolve(preset="llama-3.2-1b")):
        assert resolved.model is not None
        assert set(resolved.origins) == {f"model.{name}" for name in keys_of(ModelSpec)}


def test_origins_say_where_a_value_comes_from() -> None:
    origins = resolve(family="gpt2", **SMALL).origins
    assert origins["model.norm"] == "default of family gpt2"
    assert origins["model.mlp_size"] == "4 x hidden_size"
    assert origins["model.vocab_size"] == "data"
    assert origins["model.max_positions"] == "as training.sequence_length"
    assert origins["model.init_std"] == "default"


def test_llama_31s_rope_scaling_is_resolved() -> None:
    scaling = model(preset="llama-3.1-8b").rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.original_max_positions) == (8.0, 8192)


def test_an_unknown_preset_names_the_nearest() -> None:
    resolved = resolve(preset="gpt-2")
    assert messages(resolved) == ["no model is called 'gpt-2'"]
    assert resolved.reasons[0].fix.startswith("gpt2")
    assert "llama-3.1-405b" in resolved.reasons[0].allowed


def test_all_missing_fields_are_reported_together() -> None:
    assert [reason.paths[0] for reason in resolve(family="gpt2").reasons] == [
        "model.num_layers",
        "model.hidden_size",
        "model.num_heads",
    ]


def test_heads_must_divide_the_width() -> None:
    resolved = resolve(num_layers=2, hidden_size=96, num_heads=7)
    assert messages(resolved) == ["num_heads=7 does not divide hidden_size=96"]
    assert resolved.reasons[0].allowed == "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96"
    assert resolved.reasons[0].fix == "num_heads: 6 or 8, or give model.head_size"


def test_kv_heads_must_divide_the_heads() -> None:
    resolved = resolve(num_kv_heads=4, **SMALL)
    assert messages(resolved) == ["num_kv_heads=4 does not divide num_heads=6"]
    assert resolved.reasons[0].fix == "num_kv_heads: 3 or 6"


def test_rotary_heads_must_be_even() -> None:
    assert messages(resolve(num_layers=2, hidden_size=30, num_heads=6)) == [
        "head_size=5 is odd, and rotary positions turn pairs"
    ]
    assert model(family="gpt2", num_layers=2, hidden_size=30, num_heads=6).head_size == 5


@pytest.mark.parametrize("fields", [{"preset": "gpt2"}, {**SMALL, "max_positions": 1024}])
def test_the_sequence_must_fit_the_positions(fields: dict[str, Any]) -> None:
    resolved = resolve(sequence_length=2048, **fields)
    assert messages(resolved) == ["sequence_length=2048 is more than max_positions=1024"]
    assert resolved.reasons[0].paths[0] == "training.sequence_length"


def test_the_datas_vocabulary_must_fit_the_models() -> None:
    resolved = resolve(preset="tiny", vocab_size=50257)
    assert messages(resolved) == ["vocab_size=256 is less than the dataset's vocabulary of 50257"]
    assert resolved.reasons[0].fix == "model.vocab_size: 50257"
    assert model(preset="gpt2", vocab_size=256).vocab_size == 50257


def test_someone_must_know_the_vocabulary() -> None:
    assert messages(resolve(vocab_size=None, **SMALL)) == [
        "vocab_size is needed: neither a preset nor the dataset says it"
    ]


def test_all_contradictions_are_reported_together() -> None:
    resolved = resolve(num_layers=2, hidden_size=96, num_heads=7, num_kv_heads=2, vocab_size=None)
    assert len(resolved.reasons) == 3


def test_families_decide_defaults_and_each_can_be_given() -> None:
    gemma = model(family="gemma", **SMALL)
    assert (gemma.zero_centered_norm, gemma.scale_embeddings, gemma.activation) == (True, True, "geglu_tanh")
    assert not model(family="gemma", scale_embeddings=False, **SMALL).scale_embeddings
    assert model(family="qwen2", **SMALL).qkv_bias
    assert not model(family="qwen2", **SMALL).bias
    assert model(family="qwen3", **SMALL).qk_norm
    neox = model(family="gpt_neox", **SMALL)
    assert (neox.block, neox.rotary_size, neox.qkv_bias) == ("parallel", 4, True)


def test_a_fraction_of_a_head_that_cannot_be_turned_in_pairs_is_refused() -> None:
    resolved = resolve(rotary_fraction=0.2, **SMALL)
    assert messages(resolved) == ["rotary_fraction=0.2 turns 3 of head_size=16, and they turn in pairs"]
    assert resolved.reasons[0].fix == "rotary_fraction: 0.125"
    assert model(rotary_fraction=0.125, **SMALL).rotary_size == 2


def test_a_layernorm_is_not_zero_centered() -> None:
    assert messages(resolve(family="gpt2", zero_centered_norm=True, **SMALL)) == [
        "zero_centered_norm came with norm=layernorm"
    ]
