"""Where the published weights of a family keep each of ours: names and shapes as transformers has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from partrain.model.decoder import decoder_weights
from partrain.spec.model import ModelSpec


@dataclass(frozen=True)
class Stored:
    """Where one of our weights is stored."""

    name: str
    third: int | None = None
    """Which of query, key and value, where they are stored as one."""
    by_head: bool = False
    """Whether those thirds alternate head by head; else they follow one another."""
    transposed: bool = False
    """Whether inputs come before outputs, in a matrix."""


_LLAMA: Mapping[str, Stored] = {
    "embedding": Stored("model.embed_tokens"),
    "attention_norm": Stored("model.layers.{}.input_layernorm"),
    "attention.query": Stored("model.layers.{}.self_attn.q_proj"),
    "attention.key": Stored("model.layers.{}.self_attn.k_proj"),
    "attention.value": Stored("model.layers.{}.self_attn.v_proj"),
    "attention.query_norm": Stored("model.layers.{}.self_attn.q_norm"),
    "attention.key_norm": Stored("model.layers.{}.self_attn.k_norm"),
    "attention.output": Stored("model.layers.{}.self_attn.o_proj"),
    "mlp_norm": Stored("model.layers.{}.post_attention_layernorm"),
    "mlp.gate": Stored("model.layers.{}.mlp.gate_proj"),
    "mlp.up": Stored("model.layers.{}.mlp.up_proj"),
    "mlp.down": Stored("model.layers.{}.mlp.down_proj"),
    "final_norm": Stored("model.norm"),
    "head": Stored("lm_head"),
}
_GPT2: Mapping[str, Stored] = {
    "embedding": Stored("transformer.wte"),
    "positions": Stored("transformer.wpe"),
    "attention_norm": Stored("transformer.h.{}.ln_1"),
    "attention.query": Stored("transformer.h.{}.attn.c_attn", third=0, transposed=True),
    "attention.key": Stored("transformer.h.{}.attn.c_attn", third=1, transposed=True),
    "attention.value": Stored("transformer.h.{}.attn.c_attn", third=2, transposed=True),
    "attention.output": Stored("transformer.h.{}.attn.c_proj", transposed=True),
    "mlp_norm": Stored("transformer.h.{}.ln_2"),
    "mlp.up": Stored("transformer.h.{}.mlp.c_fc", transposed=True),
    "mlp.down": Stored("transformer.h.{}.mlp.c_proj", transposed=True),
    "final_norm": Stored("transformer.ln_f"),
    "head": Stored("lm_head"),
}
_GPT_NEOX: Mapping[str, Stored] = {
    "embedding": Stored("gpt_neox.embed_in"),
    "attention_norm": Stored("gpt_neox.layers.{}.input_layernorm"),
    "attention.query": Stored("gpt_neox.layers.{}.attention.query_key_value", third=0, by_head=True),
    "attention.key": Stored("gpt_neox.layers.{}.attention.query_key_value", third=1, by_head=True),
    "attention.value": Stored("gpt_neox.layers.{}.attention.query_key_value", third=2, by_head=True),
    "attention.output": Stored("gpt_neox.layers.{}.attention.dense"),
    "mlp_norm": Stored("gpt_neox.layers.{}.post_attention_layernorm"),
    "mlp.up": Stored("gpt_neox.layers.{}.mlp.dense_h_to_4h"),
    "mlp.down": Stored("gpt_neox.layers.{}.mlp.dense_4h_to_h"),
    "final_norm": Stored("gpt_neox.final_layer_norm"),
    "head": Stored("embed_out"),
}
NAMES: Mapping[str, Mapping[str, Stored]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), _LLAMA),
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
}
"""Family -> our name without its layer and its last part -> the same of theirs."""


def base_prefix(family: str) -> str:
    """What the names of a whole model's tensors have before those of its base model, which has no head.

    >>> base_prefix("gpt2")
    'transformer.'
    """
    return NAMES[family]["embedding"].name.split(".")[0] + "."


_BLOCK = re.compile(r"layers\.(\d+)\.(.+)")


def stored_weights(model: ModelSpec) -> dict[str, Stored]:
    """Our name -> where it is stored, for each weight of `model` but a tied head.

    Raises KeyError for a weight that the family's published models do not have.
    """
    names = NAMES[model.family]
    found = {}
    for weight in decoder_weights(model):
        if weight.tied_to is None:
            part, _, last = weight.name.rpartition(".")
            block = _BLOCK.fullmatch(part)
            entry = names[block[2] if block else part]
            name = entry.name.format(block[1]) if block else entry.name
            is_matrix = len(weight.shape) == 2
            found[weight.name] = Stored(
                f"{name}.{last}", entry.third, entry.by_head, entry.transposed and is_matrix
            )
    return found
