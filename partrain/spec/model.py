"""The model: what the user may say of it, and the complete description that all else reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partrain.spec.section import Count, Fraction, NonNegative, Positive, Share, Text

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox"]
Norm = Literal["rmsnorm", "layernorm"]
Activation = Literal["swiglu", "geglu_tanh", "gelu", "gelu_tanh"]
Position = Literal["rotary", "learned"]
Block = Literal["sequential", "parallel", "parallel_one_norm"]

GATED: tuple[Activation, ...] = ("swiglu", "geglu_tanh")
"""Activations that multiply a gate, a third matrix of the MLP, with what goes up."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Frequency-dependent stretching of the rotary embedding, as Llama 3.1 uses it."""

    factor: Positive
    """How much the low frequencies are slowed down."""
    low_freq_factor: Positive
    """Wavelengths above `original_max_positions / low_freq_factor` are stretched in full."""
    high_freq_factor: Positive
    """Wavelengths below `original_max_positions / high_freq_factor` are left alone."""
    original_max_positions: Count
    """Positions the model was trained on before stretching."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The `model` section: a preset, fields, or a preset with some fields changed."""

    preset: str | None = None
    """A named model of the catalogue; every other key given here replaces that preset's value."""
    hf: Text | None = None
    """A config.json of transformers, or a folder with one, read in a preset's place; never downloaded."""
    from_: Text | None = None
    """A folder as transformers writes it, config.json and safetensors: the model, and the weights
    that training starts from; never downloaded."""
    family: Family | None = None
    """Shape of the network; it only decides defaults, and every one of them can be given."""
    num_layers: Count | None = None
    """Decoder blocks."""
    hidden_size: Count | None = None
    """Width of the residual stream."""
    num_heads: Count | None = None
    """Attention heads (query heads)."""
    num_kv_heads: Count | None = None
    """Key and value heads; default: as many as `num_heads`."""
    head_size: Count | None = None
    """Width of one head; default: hidden_size / num_heads."""
    mlp_size: Count | None = None
    """Width inside the MLP; default: 4 x hidden_size, or with a gate 8/3 of it rounded up to 256."""
    vocab_size: Count | None = None
    """Tokens of the vocabulary; default: what the dataset says."""
    max_positions: Count | None = None
    """Longest sequence; default: training.sequence_length."""
    norm: Norm | None = None
    """Normalisation before each sub-layer and before the head."""
    norm_eps: Positive | None = None
    """Constant added inside the norm's square root."""
    zero_centered_norm: bool | None = None
    """Whether an RMSNorm's weight is kept as its distance from 1, as Gemma does."""
    qk_norm: bool | None = None
    """Whether each head's query and key are normalised, before positions enter."""
    activation: Activation | None = None
    """Non-linearity of the MLP; swiglu and geglu_tanh have a gate matrix of their own."""
    block: Block | None = None
    """Whether the MLP follows attention, or both read the block's input, with a norm each or with one."""
    sliding_window: Count | None = None
    """Newest tokens that a token attends to, itself among them; default: all before it."""
    position: Position | None = None
    """How positions enter: rotated queries and keys, or a learned table."""
    rope_theta: Positive | None = None
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Stretching of the rotary frequencies; default: none."""
    rotary_fraction: Share | None = None
    """Part of each head, from its beginning, that is rotated."""
    bias: bool | None = None
    """Whether the linear layers have biases."""
    qkv_bias: bool | None = None
    """Whether query, key and value have biases; default: as `bias`."""
    scale_embeddings: bool | None = None
    """Whether embeddings are multiplied by the square root of hidden_size."""
    tie_embeddings: bool | None = None
    """Whether the output matrix is the embedding matrix."""
    dropout: Fraction | None = None
    """Part of the embeddings and of what attention and MLP add that is dropped in training; default: 0."""
    attention_dropout: Fraction | None = None
    """Part of the attention probabilities that is dropped in training; default: 0. Which ones depends on the
    layout."""
    init_std: NonNegative | None = None
    """Standard deviation of the initial weights; output projections get it / sqrt(2 num_layers)."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder, complete: what the weight table, the estimates and the engine read."""

    family: Family
    num_layers: Count
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count
    head_size: Count
    mlp_size: Count
    vocab_size: Count
    max_positions: Count
    norm: Norm
    norm_eps: Positive
    zero_centered_norm: bool
    qk_norm: bool
    activation: Activation
    block: Block
    sliding_window: Count | None
    position: Position
    rope_theta: Positive
    rope_scaling: RopeScaling | None
    rotary_fraction: Share
    bias: bool
    qkv_bias: bool
    scale_embeddings: bool
    tie_embeddings: bool
    init_std: NonNegative
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0

    @property
    def rotary_size(self) -> int:
        """Elements of a head, the first ones, that are rotated."""
        return rotary_size(self.head_size, self.rotary_fraction)


def rotary_size(head_size: int, fraction: float) -> int:
    """Elements of a head that are rotated, rounded down.

    >>> rotary_size(80, 0.25)
    20
    """
    return int(head_size * fraction)
