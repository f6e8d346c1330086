"""What is written for transformers, read back: the same model, or refused with what stands against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partrain.spec.catalog import model_names, model_preset
from partrain.spec.huggingface import fields_of_config
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.published import config_of
from partrain.spec.resolve import resolve_model
from partrain.spec.values import read


def model_of(**fields: Any) -> ModelSpec:
    found = resolve_model(read(ModelSection, fields), sequence_length=64, vocab_size=256)
    assert found.model is not None, found.reasons
    return found.model


def read_back(model: ModelSpec) -> ModelSpec:
    config, reasons = config_of(model, "bf16")
    assert reasons == ()
    fields, refused = fields_of_config(config)
    assert refused == ()
    return model_of(**fields)


def refused_fields(model: ModelSpec) -> set[str]:
    return {reason.paths[0] for reason in config_of(model, "fp32")[1]}


@pytest.mark.parametrize("name", model_names())
def test_a_preset_is_read_back_as_it_was(name: str) -> None:
    model = model_of(preset=name, max_positions=model_preset(name).fields.get("max_positions", 64))
    assert read_back(model) == model


LLAMA: dict[str, Any] = {"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 4}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 8192}

# fields of a model -> the fields that no config of its family states
CASES: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({"rope_scaling": SCALING}, set()),
    ({"num_kv_heads": 2, "head_size": 32, "tie_embeddings": True, "norm_eps": 1e-3}, set()),
    ({"attention_dropout": 0.1, "init_std": 0.5}, set()),
    ({"dropout": 0.1}, set()),  # transformers has no such key, and only training reads it
    ({"norm": "layernorm"}, {"norm"}),
    ({"activation": "geglu_tanh"}, {"activation"}),
    ({"block": "parallel"}, {"block"}),
    ({"block": "parallel_one_norm"}, {"block"}),
    ({"position": "learned"}, {"position"}),
    ({"rotary_fraction": 0.5}, {"rotary_fraction"}),
    ({"sliding_window": 16}, {"sliding_window"}),
    ({"bias": True}, {"bias", "qkv_bias"}),
    ({"qkv_bias": True}, {"qkv_bias"}),
    ({"qk_norm": True}, {"qk_norm"}),
    ({"zero_centered_norm": True, "scale_embeddings": True}, {"zero_centered_norm", "scale_embeddings"}),
    ({"family": "mistral", "sliding_window": 16}, set()),
    ({"family": "mistral"}, set()),
    ({"family": "qwen2", "tie_embeddings": True}, set()),
    ({"family": "qwen2", "qkv_bias": False}, {"qkv_bias"}),
    ({"family": "qwen3", "head_size": 32}, set()),
    ({"family": "gemma", "head_size": 32, "tie_embeddings": False}, set()),
    ({"family": "gpt2", "dropout": 0.1, "mlp_size": 96}, set()),
    ({"family": "gpt2", "activation": "gelu"}, set()),
    ({"family": "gpt2", "rope_theta": 5.0}, set()),  # not read with learned positions
    ({"family": "gpt2", "head_size": 32}, {"head_size"}),
    ({"family": "gpt2", "num_kv_heads": 2}, {"num_kv_heads"}),
    ({"family": "gpt2", "bias": False, "position": "rotary"}, {"bias", "qkv_bias", "position"}),
    ({"family": "gpt_neox", "block": "sequential", "rotary_fraction": 1.0, "rope_theta": 5e5}, set()),
    ({"family": "gpt_neox", "activation": "gelu_tanh", "dropout": 0.1, "tie_embeddings": True}, set()),
    ({"family": "gpt_neox", "block": "parallel_one_norm"}, {"block"}),
    ({"family": "gpt_neox", "rope_scaling": SCALING}, set()),
)


@pytest.mark.parametrize(("changed", "refused"), CASES)
def test_a_field_is_stated_or_refused(changed: dict[str, Any], refused: set[str]) -> None:
    model = model_of(**{**LLAMA, **changed})
    assert refused_fields(model) == {f"model.{name}" for name in refused}
    if not refused:
        found = read_back(model)
        unsaid = {name: getattr(model, name) for name in ("dropout", "rope_theta") if name in changed}
        assert replace(found, **unsaid) == model


def test_numbers_stand_in_the_keys_that_transformers_reads() -> None:
    neox = config_of(model_of(**{**LLAMA, "family": "gpt_neox", "rotary_fraction": 0.5}), "bf16")[0]
    assert (neox["rotary_pct"], neox["rotary_emb_base"], neox["torch_dtype"]) == (0.5, 10000.0, "bfloat16")
    llama = config_of(model_of(**LLAMA, rope_scaling=SCALING), "fp32")[0]
    assert llama["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    gpt2 = config_of(model_of(**{**LLAMA, "family": "gpt2", "dropout": 0.1}), "fp16")[0]
    assert (gpt2["embd_pdrop"], gpt2["resid_pdrop"], gpt2["attn_pdrop"]) == (0.1, 0.1, 0.0)
