"""A `config.json` as transformers writes it -> fields of the `model` section.

What a decoder of ours cannot be is refused key by key; keys that say nothing of the network are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partrain.errors import Reason, escaped
from partrain.spec.model import ModelSection
from partrain.spec.numbers import listed
from partrain.spec.scalars import shown
from partrain.spec.values import Misfit, read

CONFIG = "config.json"
MAX_BYTES = 2**20
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Dialect:
    """How one `model_type` says what it is."""

    fields: Mapping[str, str]
    """Key -> field of the `model` section."""
    required: tuple[str, ...]
    """Keys whose default is another one there than here, or that have none."""
    activations: Mapping[str, str]
    fixed: Mapping[str, tuple[Any, ...]]
    """Key -> the only values that can be represented."""
    skipped: frozenset[str] = frozenset()


_SIZES: Mapping[str, str] = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
}
_EVERY: Mapping[str, str] = {"initializer_range": "init_std", "tie_word_embeddings": "tie_embeddings"}
_LLAMA: Mapping[str, str] = {
    **_SIZES,
    **_EVERY,
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_size",
    "rms_norm_eps": "norm_eps",
    "hidden_act": "activation",
    "rope_theta": "rope_theta",
    "attention_dropout": "attention_dropout",
}
_NEEDED = (*_SIZES, "rms_norm_eps", "hidden_act")
_TANH = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
_NO_BIAS = {"attention_bias": (False,), "mlp_bias": (False,), "pretraining_tp": (1,)}
# With use_sliding_window off the other two are not read; on, some layers have a window and others none.
_NO_WINDOW = {**_NO_BIAS, "use_sliding_window": (False,), "use_mrope": (False,)}
_WINDOW_KEYS = frozenset({"sliding_window", "max_window_layers"})

DIALECTS: Mapping[str, Dialect] = {
    "llama": Dialect(_LLAMA, _NEEDED, {"silu": "swiglu"}, _NO_BIAS),
    "mistral": Dialect(
        {**_LLAMA, "sliding_window": "sliding_window"},
        (*_NEEDED, "num_key_value_heads", "sliding_window"),
        {"silu": "swiglu"},
        _NO_BIAS,
    ),
    "qwen2": Dialect(_LLAMA, (*_NEEDED, "num_key_value_heads"), {"silu": "swiglu"}, _NO_WINDOW, _WINDOW_KEYS),
    "qwen3": Dialect(
        _LLAMA, (*_NEEDED, "num_key_value_heads", "head_dim"), {"silu": "swiglu"}, _NO_WINDOW, _WINDOW_KEYS
    ),
    "gemma": Dialect(
        _LLAMA,
        (*_NEEDED, "num_key_value_heads", "head_dim"),
        {"gelu_pytorch_tanh": "geglu_tanh"},
        {
            **_NO_BIAS,
            "hidden_activation": ("gelu_pytorch_tanh", None),
            "use_bidirectional_attention": (False, None),
        },
    ),
    "gpt2": Dialect(
        {
            **_EVERY,
            "n_layer": "num_layers",
            "n_embd": "hidden_size",
            "n_head": "num_heads",
            "n_inner": "mlp_size",
            "vocab_size": "vocab_size",
            "n_positions": "max_positions",
            "layer_norm_epsilon": "norm_eps",
            "activation_function": "activation",
            "resid_pdrop": "dropout",
            "attn_pdrop": "attention_dropout",
        },
        ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions"),
        {**_TANH, "gelu": "gelu"},
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        frozenset({"n_ctx", "reorder_and_upcast_attn"}),
    ),
    "gpt_neox": Dialect(
        {
            **_SIZES,
            **_EVERY,
            "layer_norm_eps": "norm_eps",
            "hidden_act": "activation",
            "rotary_pct": "rotary_fraction",
            "rotary_emb_base": "rope_theta",
            "rope_theta": "rope_theta",
            "partial_rotary_factor": "rotary_fraction",
            "use_parallel_residual": "block",
            "hidden_dropout": "dropout",
            "attention_dropout": "attention_dropout",
        },
        tuple(_SIZES),
        {**_TANH, "gelu": "gelu"},
        {"attention_bias": (True,)},
    ),
}
"""By `model_type`, which is the name of our family."""

_BLOCKS = {True: "parallel", False: "sequential"}
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# Tokens, generation, training and how the file came to be: nothing of the network.
_SKIPPED = re.compile(
    r"_.*|.*_token_id|architectures|model_type|(torch_)?dtype|transformers_version|use_cache"
    r"|classifier_dropout|summary_.*|task_specific_params|return_dict|output_.*|id2label|label2id|auto_map"
    r"|is_encoder_decoder|is_decoder|chunk_size_feed_forward|problem_type|tokenizer_class|name_or_path"
    r"|attn_implementation|gradient_checkpointing"
)


def hf_fields(text: str, *, key: str = "model.hf") -> tuple[Mapping[str, Any], tuple[Reason, ...]]:
    """The fields that the config at `text`, a file or its folder, states, or why there are none.

    `key`: what of the job names it.
    """
    stated, reasons = _read_config(text)
    return stated, tuple(replace(reason, paths=(key,)) for reason in reasons)


def _read_config(text: str) -> tuple[Mapping[str, Any], tuple[Reason, ...]]:
    path = Path(text)
    path = path / CONFIG if path.is_dir() else path
    if not path.exists():
        return {}, (_absent(text, path),)
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        return {}, (_reason(f"{path} cannot be read as JSON: {_words(error)}"),)
    if not isinstance(config, dict):
        return {}, (_reason(f"{path} holds no JSON object"),)
    return fields_of_config(config)


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or escaped(str(error))


def _absent(text: str, path: Path) -> Reason:
    if path.parent.is_dir() and path.name == CONFIG:
        cached = sorted(path.parent.glob(f"snapshots/*/{CONFIG}"))  # the folder of a model in the cache
        fix = f"name a snapshot of it: {cached[0].parent}" if cached else ""
        return _reason(f"there is no {CONFIG} in {path.parent}", fix=fix)
    fix = ""
    if _HUB_NAME.fullmatch(text):
        fix = f"fetch it first: hf download {text} {CONFIG} --local-dir {text}"
    return _reason(f"there is no file or folder {text}; it is read, never downloaded", fix=fix)


def _reason(message: str, *, allowed: str = f"a {CONFIG} or a folder with one", fix: str = "") -> Reason:
    return Reason(("model.hf",), message, allowed, fix)


def fields_of_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Reason, ...]]:
    """Fields of the `model` section, or every key that stands against it.

    >>> fields_of_config({"model_type": "mamba"})[1][0].message
    'model_type: "mamba" came'
    """
    kind = config.get("model_type")
    dialect = DIALECTS.get(kind) if isinstance(kind, str) else None
    if dialect is None:
        return {}, (_came("model_type", kind, listed(tuple(DIALECTS))),)
    values, reasons = _with_rotary(config)
    reasons += [_reason(f"{key} is missing", allowed="") for key in dialect.required if key not in values]
    stated: dict[str, Any] = {"family": kind}
    keys: dict[str, str] = {}
    for key, value in values.items():
        field = dialect.fields.get(key)
        if key == "rope_scaling":
            stated[key], keys[key] = value, key
        elif field is not None and value is not None:
            stated[field], keys[field] = _translated(field, value, dialect), key
    reasons += [*_refused(values, dialect), *_unread(stated, keys, values, dialect)]
    return stated, tuple(reasons)


def _came(key: str, value: Any, allowed: str) -> Reason:
    return _reason(f"{key}: {_shown(value)} came", allowed=allowed)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else "a section" if isinstance(value, dict) else shown(value)


def _with_rotary(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Reason]]:
    """`config` with its rotary keys where they all stand alike: they have moved between versions."""
    values = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_parameters")}
    found = {**_section(config, "rope_scaling"), **_section(config, "rope_parameters")}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in found:
            values[key] = found.pop(key)
    kind = found.pop("rope_type", found.pop("type", "default"))
    found.pop("type", None)
    if kind == "llama3":
        scaling = {key: found.get(key) for key in _SCALING}
        scaling["original_max_positions"] = scaling.pop(_SCALING[-1])
        return {**values, "rope_scaling": scaling}, []
    return values, [] if kind == "default" else [_came("rope_scaling.rope_type", kind, "default or llama3")]


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _translated(field: str, value: Any, dialect: Dialect) -> Any:
    if field == "activation":
        return dialect.activations.get(value, value) if isinstance(value, str) else value
    return _BLOCKS.get(value, value) if field == "block" and isinstance(value, bool) else value


def _refused(values: Mapping[str, Any], dialect: Dialect) -> Iterator[Reason]:
    """Keys that no field of ours stands for, unless they say what is so anyway."""
    for key, value in values.items():
        if key in dialect.fixed:
            allowed = dialect.fixed[key]
            if not any(value == choice and type(value) is type(choice) for choice in allowed):
                yield _came(key, value, listed([_shown(choice) for choice in allowed], last=" or "))
        elif key == "layer_types":
            if not isinstance(value, list) or set(value) - {"full_attention"}:
                yield _came(key, value, "full_attention for every layer")
        elif key == "embd_pdrop":  # ours is one rate for embeddings and residual branches
            if value != values.get("resid_pdrop", 0):
                yield _came(key, value, f"{_shown(values.get('resid_pdrop', 0))}, as resid_pdrop")
        elif not _is_known(key, value, dialect):
            yield _reason(f"{key}: {_shown(value)} came, which no field of a model stands for", allowed="")


def _is_known(key: str, value: Any, dialect: Dialect) -> bool:
    stands = key in dialect.fields or key in dialect.skipped or key == "rope_scaling"
    is_off = key.endswith(("dropout", "_pdrop")) and value == 0
    return stands or is_off or value is None or _SKIPPED.fullmatch(key) is not None


def _unread(
    stated: Mapping[str, Any], keys: Mapping[str, str], values: Mapping[str, Any], dialect: Dialect
) -> Iterator[Reason]:
    """Values that their fields may not have."""
    if "activation" in stated and stated["activation"] not in dialect.activations.values():
        yield _came(keys["activation"], values[keys["activation"]], listed(tuple(dialect.activations)))
        stated = {field: value for field, value in stated.items() if field != "activation"}
    try:
        read(ModelSection, dict(stated))
    except Misfit as error:
        for problem in error.problems:
            field = str(problem.loc[0])
            key = ".".join([keys.get(field, field), *(str(part) for part in problem.loc[1:])])
            yield _came(key, values.get(keys.get(field, field)), "")
