"""A complete model -> a `config.json` as transformers reads it: the reader's tables, the other way about.

What is written is read again, so that a model that no config of transformers describes is refused with the
fields that stand against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from partrain.errors import Reason
from partrain.spec.huggingface import DIALECTS, Dialect, fields_of_config
from partrain.spec.model import Family, ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model
from partrain.spec.scalars import shown
from partrain.spec.training import Precision
from partrain.spec.values import read

ARCHITECTURES: Mapping[Family, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
}
DTYPES: Mapping[Precision, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

_TRAINING_ONLY = frozenset({"dropout", "attention_dropout", "init_std"})
_ROTARY = frozenset({"rope_theta", "rope_scaling", "rotary_fraction"})
_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""Data do not say which tokens these are; the defaults of transformers are those of other vocabularies."""


def config_of(model: ModelSpec, precision: Precision) -> tuple[Mapping[str, Any], tuple[Reason, ...]]:
    """The config of `model`, its weights stored in `precision`, or every field that none can state.

    Rates of dropout that the family's configs have no key for are left out: only training reads them.
    """
    dialect = DIALECTS[model.family]
    values = {
        "architectures": [ARCHITECTURES[model.family]],
        "model_type": model.family,
        **_NO_TOKENS,
        **_sizes(model, dialect),
        "torch_dtype": DTYPES[precision],  # the older of two names; transformers 5 reads both
    }
    return values, _unlike(model, values)


def export_reasons(model: ModelSpec, precision: Precision) -> tuple[Reason, ...]:
    """Every field of `model` that `checkpoint.export: hf` has no config for."""
    _, reasons = config_of(model, precision)
    return tuple(
        Reason(
            ("checkpoint.export", *reason.paths),
            f"{reason.paths[0]}: {reason.message}",
            reason.allowed,
            "leave export out",
        )
        for reason in reasons
    )


def _sizes(model: ModelSpec, dialect: Dialect) -> dict[str, Any]:
    """What the dialect has a key for."""
    keys: dict[str, str] = {}
    for key, field in dialect.fields.items():
        keys.setdefault(field, key)  # the first is the one that all versions read
    stated = {}
    for field, key in keys.items():
        value, words = getattr(model, field), _words(dialect, field)
        stated[key] = value if words is None else words.get(value)  # no word: not as it is when read
    if model.family == "gpt2":
        stated["embd_pdrop"] = model.dropout  # ours is one rate for embeddings and residual branches
    if model.rope_scaling is not None:
        scaling = asdict(model.rope_scaling)
        scaling["original_max_position_embeddings"] = scaling.pop("original_max_positions")
        stated["rope_scaling"] = {"rope_type": "llama3", **scaling}
    return stated


def _words(dialect: Dialect, field: str) -> Mapping[str, Any] | None:
    """What the dialect calls the values of a field; None: as we do."""
    if field == "block":
        return {"parallel": True, "sequential": False}
    if field == "activation":
        return {ours: theirs for theirs, ours in reversed([*dialect.activations.items()])}  # the first stays
    return None


def _unlike(model: ModelSpec, config: Mapping[str, Any]) -> tuple[Reason, ...]:
    """Fields that a reader of `config` would not find as they are."""
    stated, reasons = fields_of_config(config)
    if reasons:
        return reasons
    section = read(ModelSection, dict(stated))
    found = resolve_model(section, sequence_length=model.max_positions, vocab_size=None)
    if found.model is None:
        return found.reasons
    skipped = _TRAINING_ONLY | (_ROTARY if model.position == "learned" else frozenset())
    names = (field.name for field in fields(model) if field.name not in skipped)
    return tuple(
        _differs(name, getattr(model, name), getattr(found.model, name), model.family)
        for name in names
        if getattr(model, name) != getattr(found.model, name)
    )


def _differs(name: str, ours: object, theirs: object, family: Family) -> Reason:
    came, allowed = (_shown(value) for value in (ours, theirs))
    return Reason((f"model.{name}",), f"{came} came, which no {family} of transformers has", allowed)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return shown(value) if isinstance(value, bool | int | float) else "a section"
