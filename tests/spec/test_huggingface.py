"""Configs of published models, as their files have them, against the presets; and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partrain.spec.huggingface import fields_of_config, hf_fields
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import ResolvedModel, resolve_model
from partrain.spec.values import read

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA_3_1_8B: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
PYTHIA_1B: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 16,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}


def resolve(**fields: Any) -> ResolvedModel:
    return resolve_model(read(ModelSection, fields), sequence_length=128, vocab_size=None)


def model(**fields: Any) -> ModelSpec:
    resolved = resolve(**fields)
    assert resolved.model is not None, resolved.reasons
    return resolved.model


def written(config: object, folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def messages(**fields: Any) -> list[str]:
    return [reason.message for reason in resolve(**fields).reasons]


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (QWEN3_8B, "qwen3-8b"),
        (LLAMA_3_1_8B, "llama-3.1-8b"),
        (PYTHIA_1B, "pythia-1b"),
        (GPT2, "gpt2"),
    ],
    ids=["qwen3", "llama", "gpt_neox", "gpt2"],
)
def test_a_published_config_is_the_preset(config: dict[str, Any], preset: str, tmp_path: Path) -> None:
    file = written(config, tmp_path)
    # gpt2 was trained with dropout, which its config states and the preset leaves to the job
    rates = {"dropout": config.get("resid_pdrop", 0.0), "attention_dropout": config.get("attn_pdrop", 0.0)}
    assert model(hf=str(file)) == model(hf=str(tmp_path)) == replace(model(preset=preset), **rates)


def test_a_field_given_beside_a_config_replaces_its_value(tmp_path: Path) -> None:
    resolved = resolve(hf=str(written(QWEN3_8B, tmp_path)), num_layers=4)
    assert resolved.model is not None
    assert (resolved.model.num_layers, resolved.model.hidden_size) == (4, 4096)
    assert resolved.origins["model.num_layers"] == "given"
    assert resolved.origins["model.hidden_size"] == f"config {tmp_path / 'config.json'}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, 'model_type: "mamba" came'),
        ({"hidden_act": "relu"}, 'hidden_act: "relu" came'),
        ({"attention_bias": True}, "attention_bias: true came"),
        ({"use_sliding_window": True}, "use_sliding_window: true came"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_scaling.rope_type: "yarn" came'),
        ({"num_experts": 64}, "num_experts: 64 came, which no field of a model stands for"),
        ({"hidden_size": "wide"}, 'hidden_size: "wide" came'),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: a list came"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_its_key(change: dict[str, Any], message: str) -> None:
    _, reasons = fields_of_config({**QWEN3_8B, **change})
    assert [reason.message for reason in reasons] == [message]
    assert reasons[0].paths == ("model.hf",)


def test_everything_against_a_config_is_told_at_once() -> None:
    config = {key: value for key, value in QWEN3_8B.items() if key != "vocab_size"}
    _, reasons = fields_of_config({**config, "attention_bias": True, "num_experts": 64})
    assert len(reasons) == 3


def test_both_forms_of_the_rotary_keys_are_read() -> None:
    older, _ = fields_of_config(LLAMA_3_1_8B)
    kept = {key: value for key, value in LLAMA_3_1_8B.items() if not key.startswith("rope")}
    scaling = {**LLAMA_3_1_8B["rope_scaling"], "rope_theta": 500000.0}
    newer, reasons = fields_of_config({**kept, "rope_parameters": scaling})
    assert reasons == ()
    assert newer == older


def test_a_name_of_the_hub_is_answered_with_how_to_fetch_it() -> None:
    (reason,) = resolve(hf="Qwen/Qwen3-8B").reasons
    assert "never downloaded" in reason.message
    assert reason.fix == "fetch it first: hf download Qwen/Qwen3-8B config.json --local-dir Qwen/Qwen3-8B"


def test_a_config_that_is_none_is_told(tmp_path: Path) -> None:
    assert messages(hf=str(tmp_path)) == [f"there is no config.json in {tmp_path}"]
    file = tmp_path / "config.json"
    for text, words in (("{", "cannot be read as JSON"), ("[1]", "holds no JSON object"), ("", "JSON")):
        file.write_text(text)
        (message,) = messages(hf=str(file))
        assert words in message


def test_a_preset_and_a_config_together_are_refused(tmp_path: Path) -> None:
    assert messages(hf=str(written(GPT2, tmp_path)), preset="gpt2") == ["both preset and hf came"]


def test_dropout_is_read_as_it_stands() -> None:
    fields, reasons = fields_of_config(GPT2)
    assert reasons == ()
    assert (fields["dropout"], fields["attention_dropout"]) == (0.1, 0.1)
    fields, reasons = fields_of_config({**QWEN3_8B, "attention_dropout": 0.2})
    assert (fields["attention_dropout"], reasons) == (0.2, ())


def test_dropout_that_no_field_stands_for_is_refused() -> None:
    (reason,) = fields_of_config({**GPT2, "embd_pdrop": 0.2})[1]
    assert (reason.message, reason.allowed) == ("embd_pdrop: 0.2 came", "0.1, as resid_pdrop")
    (reason,) = fields_of_config({**QWEN3_8B, "hidden_dropout": 0.1})[1]
    assert reason.message == "hidden_dropout: 0.1 came, which no field of a model stands for"
    assert fields_of_config({**QWEN3_8B, "hidden_dropout": 0.0, "classifier_dropout": 0.1})[1] == ()


def test_the_folder_of_a_model_in_a_cache_is_told_from_a_snapshot_of_it(tmp_path: Path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0f"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    _, (reason,) = hf_fields(str(tmp_path / "models--a--b"))
    assert reason.fix == f"name a snapshot of it: {snapshot}"
