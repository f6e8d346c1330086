"""The `model` section -> a complete model, with the origin of every value.

A value is, in this order: given in the job, the preset's, the family's default, derived from others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from partrain.errors import Reason
from partrain.spec.catalog import UnknownName, model_names, model_preset
from partrain.spec.huggingface import hf_fields
from partrain.spec.model import GATED, ModelSection, ModelSpec, rotary_size
from partrain.spec.numbers import divisors, listed, neighbours
from partrain.spec.values import read

DEFAULT_FAMILY = "llama"

_LLAMA: Mapping[str, Any] = {
    "norm": "rmsnorm",
    "norm_eps": 1e-5,
    "activation": "swiglu",
    "position": "rotary",
    "bias": False,
    "tie_embeddings": False,
}
_GPT2: Mapping[str, Any] = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "activation": "gelu_tanh",
    "position": "learned",
    "bias": True,
    "tie_embeddings": True,
}
_GEMMA: Mapping[str, Any] = {
    "norm_eps": 1e-6,
    "zero_centered_norm": True,
    "activation": "geglu_tanh",
    "scale_embeddings": True,
    "tie_embeddings": True,
}
_GPT_NEOX: Mapping[str, Any] = {
    "activation": "gelu",
    "block": "parallel",
    "position": "rotary",
    "rotary_fraction": 0.25,
    "tie_embeddings": False,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,  # Touvron et al. 2023, section 2.2
    "mistral": _LLAMA,  # Jiang et al. 2023, section 2; the window is the preset's, later models have none
    "qwen2": {**_LLAMA, "norm_eps": 1e-6, "qkv_bias": True},  # Yang et al. 2024, section 2.2.1
    "qwen3": {**_LLAMA, "norm_eps": 1e-6, "qk_norm": True},  # Yang et al. 2025, section 2
    "gemma": {**_LLAMA, **_GEMMA},  # Gemma Team 2024, section 2, and its published code
    "gpt2": _GPT2,  # Radford et al. 2019, section 2.3
    "gpt_neox": {**_GPT2, **_GPT_NEOX},  # Black et al. 2022, section 2.1; Biderman et al. 2023, section 2.1
}
"""What makes a family's shape."""

DEFAULTS: Mapping[str, Any] = {
    "zero_centered_norm": False,
    "qk_norm": False,
    "block": "sequential",
    "sliding_window": None,
    "rope_theta": 10000.0,  # Su et al. 2021, section 3.2.2; not read with learned positions.
    "rope_scaling": None,
    "rotary_fraction": 1.0,
    "scale_embeddings": False,
    "init_std": 0.02,  # The families' published configurations.
    "dropout": 0.0,  # One pass over the data needs none: Brown et al. 2020 and Touvron et al. 2023 name none.
    "attention_dropout": 0.0,
}

CONFIG_ORIGIN = "config "
"""How the origin of a value that a config.json states begins; its path follows."""

REQUIRED = ("num_layers", "hidden_size", "num_heads")
"""Fields that nothing else can tell."""


@dataclass(frozen=True)
class ResolvedModel:
    """What the `model` section means."""

    model: ModelSpec | None
    """None when `reasons` says why there is none."""
    origins: Mapping[str, str]
    """Key path -> where the value comes from, in words; a value of the job is `given`."""
    reasons: tuple[Reason, ...]
    """All that is wrong with it."""


def resolve_model(
    section: ModelSection,
    *,
    sequence_length: int,
    vocab_size: int | None,
    config: Mapping[str, Any] | None = None,
) -> ResolvedModel:
    """The complete model; `vocab_size` is the dataset's, None where it does not say.

    `config`: what the config in the folder that the section starts from states; None: it is read.
    """
    named, refused = _named(section, config)
    if refused:
        return ResolvedModel(None, {}, refused)
    values, origins = _stated(section, named)
    missing = tuple(_missing(name) for name in REQUIRED if name not in values)
    if missing:
        return ResolvedModel(None, {}, missing)
    _derive(values, origins, sequence_length=sequence_length, vocab_size=vocab_size)
    found = (rule(values, sequence_length, vocab_size) for rule in RULES)
    reasons = tuple(reason for reason in found if reason is not None)
    model = None if reasons else ModelSpec(**values)
    return ResolvedModel(model, {f"model.{name}": words for name, words in origins.items()}, reasons)


_Named = tuple[Mapping[str, Any], str]


def _named(section: ModelSection, known: Mapping[str, Any] | None) -> tuple[_Named, tuple[Reason, ...]]:
    """What the preset or the config states, and its name in words; or why it states nothing."""
    preset = section.preset
    came = {"preset": preset, "hf": section.hf, "from": section.from_}
    several = [key for key, value in came.items() if value is not None]
    if len(several) > 1:
        paths = (*(f"model.{key}" for key in reversed(several)), "model")
        said = f"{'both ' * (len(several) == 2)}{listed(several, last=' and ')} came"
        return ({}, ""), (Reason(paths, said, "one of them", f"leave out {listed(several, last=' or ')}"),)
    for key in ("hf", "from"):
        config = came[key]
        if config is not None:
            stated, reasons = (known, ()) if known is not None else hf_fields(config, key=f"model.{key}")
            return (stated, f"{CONFIG_ORIGIN}{config}"), reasons
    if preset is None:
        return ({}, ""), ()
    try:
        return (model_preset(preset).fields, f"preset {preset}"), ()
    except UnknownName as error:
        allowed, nearest = ", ".join(model_names()), " or ".join(error.nearest)
        return ({}, ""), (Reason(("model.preset",), str(error), allowed, nearest),)


def _stated(section: ModelSection, source: _Named) -> tuple[dict[str, Any], dict[str, str]]:
    """Values that need no other value, and their origins."""
    given = _fields(section)
    named = _fields(read(ModelSection, dict(source[0])))
    family = given.get("family") or named.get("family") or DEFAULT_FAMILY
    layers: tuple[tuple[Mapping[str, Any], str], ...] = (
        ({"family": DEFAULT_FAMILY}, "default"),
        (DEFAULTS, "default"),
        (FAMILIES[family], f"default of family {family}"),
        (named, source[1]),
        (given, "given"),
    )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, origin in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    return values, origins


def _fields(section: ModelSection) -> dict[str, Any]:
    """The fields of the model that `section` states."""
    stated = {field.name: getattr(section, field.name) for field in fields(ModelSpec)}
    return {name: value for name, value in stated.items() if value is not None}


def _derive(
    values: dict[str, Any], origins: dict[str, str], *, sequence_length: int, vocab_size: int | None
) -> None:
    """Fill in what follows from other values, in an order in which each is there before it is needed."""
    hidden, heads = values["hidden_size"], values["num_heads"]
    head_size = hidden // heads if hidden % heads == 0 else None
    if values["activation"] in GATED:
        # Three matrices instead of two: 8/3 keeps the parameters of 4 (Shazeer 2020, section 2).
        mlp = (-(-8 * hidden // (3 * 256)) * 256, "8/3 x hidden_size, up to a multiple of 256")
    else:
        mlp = (4 * hidden, "4 x hidden_size")
    derived: dict[str, tuple[Any, str]] = {
        "num_kv_heads": (heads, "as num_heads"),
        "head_size": (head_size, "hidden_size / num_heads"),
        "mlp_size": mlp,
        "qkv_bias": (values["bias"], "as bias"),
        "max_positions": (sequence_length, "as training.sequence_length"),
        "vocab_size": (vocab_size, "data"),
    }
    for name, (value, origin) in derived.items():
        if name not in values:
            values[name], origins[name] = value, origin


def _missing(name: str) -> Reason:
    fix = f"model.{name}, or model.preset: tiny"
    paths = (f"model.{name}", "model.preset", "model")
    return Reason(paths, f"{name} is needed without a preset", fix=fix)


_Values = Mapping[str, Any]


def heads_divide_the_width(values: _Values, _sequence: int, _vocabulary: int | None) -> Reason | None:
    """A head size that is not given is hidden_size / num_heads, which must be whole."""
    if values["head_size"] is not None:
        return None
    hidden, heads = values["hidden_size"], values["num_heads"]
    legal = divisors(hidden)
    return Reason(
        ("model.num_heads", "model.hidden_size", "model.preset", "model.hf"),
        f"num_heads={heads} does not divide hidden_size={hidden}",
        allowed=listed(legal),
        fix=f"num_heads: {listed(neighbours(legal, heads), last=' or ')}, or give model.head_size",
    )


def kv_heads_divide_the_heads(values: _Values, _sequence: int, _vocabulary: int | None) -> Reason | None:
    """Each key and value head serves the same number of query heads."""
    heads, kv_heads = values["num_heads"], values["num_kv_heads"]
    if heads % kv_heads == 0:
        return None
    legal = divisors(heads)
    return Reason(
        ("model.num_kv_heads", "model.num_heads", "model.preset"),
        f"num_kv_heads={kv_heads} does not divide num_heads={heads}",
        allowed=listed(legal),
        fix=f"num_kv_heads: {listed(neighbours(legal, kv_heads), last=' or ')}",
    )


def rotary_heads_are_even(values: _Values, _sequence: int, _vocabulary: int | None) -> Reason | None:
    """Rotary positions turn pairs of a head's elements."""
    size, fraction = values["head_size"], values["rotary_fraction"]
    if values["position"] != "rotary" or size is None:
        return None
    turned = rotary_size(size, fraction)
    if turned % 2 == 0 and turned > 0:
        return None
    if fraction < 1:
        pairs = max(2, turned // 2 * 2)
        return Reason(
            ("model.rotary_fraction", "model.head_size", "model.preset", "model.family"),
            f"rotary_fraction={fraction:g} turns {turned} of head_size={size}, and they turn in pairs",
            allowed="a fraction that turns an even number of them",
            fix=f"rotary_fraction: {pairs / size:.6g}",
        )
    return Reason(
        ("model.head_size", "model.num_heads", "model.hidden_size", "model.preset"),
        f"head_size={size} is odd, and rotary positions turn pairs",
        allowed="an even head_size",
        fix=f"head_size: {size + 1}, or position: learned",
    )


def sequence_fits_the_positions(values: _Values, sequence: int, _vocabulary: int | None) -> Reason | None:
    """A model knows max_positions positions."""
    longest = values["max_positions"]
    if sequence <= longest:
        return None
    return Reason(
        ("training.sequence_length", "model.max_positions", "model.preset"),
        f"sequence_length={sequence} is more than max_positions={longest}",
        allowed=f"1 to {longest}",
        fix=f"sequence_length: {longest}, or max_positions: {sequence}",
    )


def vocabulary_is_known(values: _Values, _sequence: int, _vocabulary: int | None) -> Reason | None:
    """Neither the model nor the dataset says how many tokens there are."""
    if values["vocab_size"] is not None:
        return None
    message = "vocab_size is needed: neither a preset nor the dataset says it"
    return Reason(("model.vocab_size", "data.train", "model"), message, fix="model.vocab_size: 256")


def vocabulary_covers_the_data(values: _Values, _sequence: int, vocabulary: int | None) -> Reason | None:
    """Every token of the dataset needs a row of the embedding."""
    rows = values["vocab_size"]
    if rows is None or vocabulary is None or vocabulary <= rows:
        return None
    return Reason(
        ("model.vocab_size", "data.train", "model.preset"),
        f"vocab_size={rows} is less than the dataset's vocabulary of {vocabulary}",
        allowed=f"{vocabulary} or more",
        fix=f"model.vocab_size: {vocabulary}",
    )


def only_rmsnorm_is_zero_centered(values: _Values, _sequence: int, _vocabulary: int | None) -> Reason | None:
    """A LayerNorm's weight is kept as it is."""
    if not values["zero_centered_norm"] or values["norm"] == "rmsnorm":
        return None
    return Reason(
        ("model.zero_centered_norm", "model.norm", "model.family", "model.preset"),
        f"zero_centered_norm came with norm={values['norm']}",
        allowed="rmsnorm with it",
        fix="zero_centered_norm: false, or norm: rmsnorm",
    )


RULES: tuple[Callable[[_Values, int, int | None], Reason | None], ...] = (
    heads_divide_the_width,
    kv_heads_divide_the_heads,
    rotary_heads_are_even,
    only_rmsnorm_is_zero_centered,
    sequence_fits_the_positions,
    vocabulary_is_known,
    vocabulary_covers_the_data,
)
