"""Small models of every family as transformers builds them, and ours with their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from partrain.engine.groups import TensorGroup
from partrain.engine.pipeline import decoder_parts
from partrain.engine.tensor_parallel import Region, mark
from partrain.model.huggingface import Stored
from partrain.model.weights import Weight, local_shape, shard_range
from partrain.spec.huggingface import fields_of_config
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model
from partrain.spec.values import read

LENGTH, BATCH = 40, 2
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,  # else the gradient of its row is dropped there
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "attn_implementation": "eager",
}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
NEOX: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "rope_parameters")},
    "hidden_size": 64,
}
GPT2: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **{key: SMALL[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "attn_implementation")},
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
PHI: dict[str, Any] = {
    **SMALL,
    "hidden_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
}
PHI_AS_LLAMA = {
    ".dense.": ".o_proj.",
    ".fc1.": ".up_proj.",
    ".fc2.": ".down_proj.",
    ".final_layernorm.": ".norm.",
}
"""Phi's names and those of Llama's weights in their place."""
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("llama", SMALL),
    "llama-3": ("llama", {**SMALL, "rope_parameters": STRETCHED, "tie_word_embeddings": True}),
    "mistral": ("mistral", {**SMALL, "sliding_window": 7}),
    "mistral-without-window": ("mistral", {**SMALL, "sliding_window": None}),
    "qwen2.5": ("qwen2", SMALL),
    "qwen3": ("qwen3", {**SMALL, "head_dim": 16}),
    "gemma": ("gemma", {**SMALL, "head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "gpt2": ("gpt2", GPT2),
    "pythia": ("gpt_neox", {**NEOX, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.25}}),
    "phi": ("phi", PHI),
    "gpt-neox-in-sequence": ("gpt_neox", {**NEOX, "use_parallel_residual": False}),
}


def theirs(name: str) -> nn.Module:
    """The model of transformers, every weight moved away from where it starts: norms and biases count too."""
    kind, values = CONFIGS[name]
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(7)
    module: nn.Module = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    module.lm_head.bias = None  # phi's: no head of ours has one
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return module


def spec_of(module: Any) -> ModelSpec:
    """Our model from the config as it would be written to a file; of phi, which is not read, by hand."""
    if module.config.model_type == "phi":
        fields: Mapping[str, Any] = fields_of_phi(module.config)
    else:
        fields, reasons = fields_of_config(module.config.to_dict())
        assert reasons == ()
    model = resolve_model(read(ModelSection, dict(fields)), sequence_length=LENGTH, vocab_size=None).model
    assert model is not None
    return model


def fields_of_phi(config: Any) -> dict[str, Any]:
    """A block whose attention and MLP read one norm, as in GPT-J and Falcon 7B; under Llama's names."""
    return {
        "family": "llama",
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "mlp_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "norm": "layernorm",
        "norm_eps": config.layer_norm_eps,
        "activation": "gelu_tanh",
        "block": "parallel_one_norm",
        "rope_theta": config.rope_parameters["rope_theta"],
        "rotary_fraction": config.rope_parameters["partial_rotary_factor"],
        "bias": True,
        "tie_embeddings": False,
    }


def published(name: str, model: ModelSpec) -> str:
    """The name in the published file of the weight that transformers holds as `name`."""
    if model.block == "parallel_one_norm":
        for phi, llama in PHI_AS_LLAMA.items():
            name = name.replace(phi, llama)
    renamed = model.family == "gpt_neox" and name == "lm_head.weight"  # since transformers 5
    return "embed_out.weight" if renamed else name


def taken(stored: Stored, tensors: dict[str, Tensor], model: ModelSpec) -> Tensor:
    """Our weight out of theirs; of a gradient, ours too."""
    tensor = tensors[stored.name]
    tensor = tensor.t() if stored.transposed else tensor
    if stored.third is None:
        return tensor
    if stored.by_head:
        heads = tensor.view(model.num_heads, 3, model.head_size, *tensor.shape[1:])
        return heads[:, stored.third].flatten(0, 1)
    return tensor.chunk(3)[stored.third]


def sharded(whole: Tensor, weight: Weight, group: TensorGroup) -> Tensor:
    """This rank's share of `whole`, padding zero."""
    result = torch.zeros(local_shape(weight, group.size))
    if weight.split is None:
        return result.copy_(whole)
    first, end = shard_range(weight, group.size, group.rank)
    result.narrow(weight.split, 0, end - first).copy_(whole.narrow(weight.split, first, end - first))
    return result


def ours(model: ModelSpec, wholes: dict[str, Tensor], region: Region) -> tuple[nn.ModuleList, list[Any]]:
    """Modules with the weights, and the functions that make logits of tokens one after another."""
    modules, shared, steps = nn.ModuleList(), {}, []
    for part in decoder_parts(model, region, "none"):
        module = shared.get(part.tied) if part.tied else None
        if module is None:
            module = part.build()
            modules.append(module)
            shared[part.tied] = module
            for owner in module.modules():
                for name, empty in list(owner.named_parameters(recurse=False)):
                    entry: Weight = empty.entry  # type: ignore[attr-defined]
                    share = sharded(wholes[entry.name], entry, region.group)
                    owner.register_parameter(name, mark(nn.Parameter(share), entry))
        forward = part.forward
        steps.append(module if forward is None else lambda x, f=forward, m=module: f(m, x))
    return modules, steps


def tokens_of(model: ModelSpec) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    drawn = torch.randint(model.vocab_size, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    return drawn[:, :-1], drawn[:, 1:]
