"""The decoder's layers, in pipeline order, built from the weight table on the meta device.

Shapes: B sequences, T tokens, S tokens this rank holds outside a region, H hidden size, N heads and K
key-value heads of this rank, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partrain.engine.tensor_parallel import (
    ColumnLinear,
    Region,
    RowLinear,
    VocabularyEmbedding,
    parameter,
    vocabulary_logits,
)
from partrain.model.decoder import EMBEDDING, HEAD, POSITIONS, block_prefix, decoder_weights
from partrain.model.weights import Weight
from partrain.spec.model import ModelSpec

Table = Mapping[str, Weight]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": F.silu,
}


def weight_table(model: ModelSpec) -> Table:
    """The model's weights by name."""
    return {weight.name: weight for weight in decoder_weights(model)}


@lru_cache(maxsize=4)
def rotary_table(
    model: ModelSpec, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D], the two halves of a head equal (Su et al. 2021, in GPT-NeoX's order)."""
    index = torch.arange(0, model.head_size, 2, device=device, dtype=torch.float32)
    frequency = model.rope_theta ** (-index / model.head_size)
    if model.rope_scaling is not None:
        frequency = _scaled(frequency, model)
    angle_TD = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency).repeat(1, 2)
    return angle_TD.cos().to(dtype), angle_TD.sin().to(dtype)


def _scaled(frequency: Tensor, model: ModelSpec) -> Tensor:
    """Llama 3.1's stretching: low frequencies divided by `factor`, high ones kept, a ramp between them."""
    wish = model.rope_scaling
    assert wish is not None
    turns = wish.original_max_positions * frequency / (2 * math.pi)
    keep = (turns - wish.low_freq_factor) / (wish.high_freq_factor - wish.low_freq_factor)
    keep = keep.clamp(0, 1)
    return frequency * keep + frequency / wish.factor * (1 - keep)


def rotated(x_BTND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """`x` with each pair (i, i + D/2) turned by its position's angle."""
    first, second = x_BTND.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BTND * cos_TD.unsqueeze(1) + turned * sin_TD.unsqueeze(1)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over H, outside the region."""

    def __init__(self, model: ModelSpec, table: Table, name: str, region: Region) -> None:
        super().__init__()
        self.region, self.eps = region, model.norm_eps
        self.weight = parameter(table[f"{name}.weight"], region.group)
        bias = table.get(f"{name}.bias")
        self.bias = parameter(bias, region.group) if bias else None

    def forward(self, x_BSH: Tensor) -> Tensor:
        weight = self.region.outside(self.weight)
        if self.bias is None:
            return F.rms_norm(x_BSH, weight.shape, weight, self.eps)
        return F.layer_norm(x_BSH, weight.shape, weight, self.region.outside(self.bias), self.eps)


def _column(table: Table, name: str, region: Region) -> ColumnLinear:
    return ColumnLinear(table[f"{name}.weight"], table.get(f"{name}.bias"), region.group)


def _row(table: Table, name: str, region: Region) -> RowLinear:
    return RowLinear(table[f"{name}.weight"], table.get(f"{name}.bias"), region)


class Attention(nn.Module):
    """Causal self-attention; each rank has some of the heads."""

    def __init__(
        self, model: ModelSpec, table: Table, prefix: str, *, region: Region, recompute: bool
    ) -> None:
        super().__init__()
        self.model, self.recompute = model, recompute
        self.query = _column(table, f"{prefix}.query", region)
        self.key = _column(table, f"{prefix}.key", region)
        self.value = _column(table, f"{prefix}.value", region)
        self.output = _row(table, f"{prefix}.output", region)

    def forward(self, x_BTH: Tensor) -> Tensor:
        heads = (*x_BTH.shape[:2], -1, self.model.head_size)
        q_BTND, k_BTKD, v_BTKD = (part(x_BTH).view(heads) for part in (self.query, self.key, self.value))
        if self.model.position == "rotary":
            cos, sin = rotary_table(self.model, x_BTH.shape[1], x_BTH.device, x_BTH.dtype)
            q_BTND, k_BTKD = rotated(q_BTND, cos, sin), rotated(k_BTKD, cos, sin)
        qkv = tuple(part.transpose(1, 2) for part in (q_BTND, k_BTKD, v_BTKD))
        y_BNTD = _recomputed(attention_core, *qkv) if self.recompute else attention_core(*qkv)
        return self.output(y_BNTD.transpose(1, 2).flatten(2))


def attention_core(q_BNTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
    """Softmax attention with a causal mask, [B, N, T, D]; torch picks the kernel."""
    grouped = q_BNTD.shape[1] != k_BKTD.shape[1]
    return F.scaled_dot_product_attention(q_BNTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=grouped)


class Mlp(nn.Module):
    """Two or three matrices around a non-linearity; each rank has some of the inner width."""

    def __init__(self, model: ModelSpec, table: Table, prefix: str, region: Region) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[model.activation]
        self.gate = _column(table, f"{prefix}.gate", region) if model.activation == "swiglu" else None
        self.up = _column(table, f"{prefix}.up", region)
        self.down = _row(table, f"{prefix}.down", region)

    def forward(self, x_BTH: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTH)))
        return self.down(self.activation(self.gate(x_BTH)) * self.up(x_BTH))


class Embedding(VocabularyEmbedding):
    """Layer 0, its tokens. On a later stage that holds the tied head, only its weight is used."""

    def __init__(self, table: Table, region: Region) -> None:
        super().__init__(table[EMBEDDING], region)


class Positions(nn.Module):
    """Layer 0, its learned positions: [B, S, H] -> [B, S, H]."""

    def __init__(self, table: Table, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = parameter(table[POSITIONS], region.group)

    def forward(self, x_BSH: Tensor) -> Tensor:
        held = x_BSH.shape[1]
        length = held * self.region.group.size if self.region.sequence_parallel else held
        return x_BSH + self.region.outside(self.weight)[self.region.tokens(length)]


class Block(nn.Module):
    """One decoder block, norms first: [B, S, H] -> [B, S, H]."""

    def __init__(self, model: ModelSpec, table: Table, block: int, *, region: Region, recompute: str) -> None:
        super().__init__()
        prefix = block_prefix(block)
        self.region, self.recompute = region, recompute == "full"
        self.attention_norm = Norm(model, table, f"{prefix}.attention_norm", region)
        selective = recompute == "selective"
        self.attention = Attention(model, table, f"{prefix}.attention", region=region, recompute=selective)
        self.mlp_norm = Norm(model, table, f"{prefix}.mlp_norm", region)
        self.mlp = Mlp(model, table, f"{prefix}.mlp", region)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return _recomputed(self.body, x_BSH) if self.recompute else self.body(x_BSH)

    def body(self, x_BSH: Tensor) -> Tensor:
        """The block itself, whatever is kept of it."""
        x_BSH = x_BSH + self.attention(self.region.enter(self.attention_norm(x_BSH)))
        return x_BSH + self.mlp(self.region.enter(self.mlp_norm(x_BSH)))


class Head(nn.Module):
    """The last layer's matrix: [B, S, H] -> [B, T, V / tp]."""

    def __init__(self, table: Table, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = parameter(table[HEAD], region.group)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return vocabulary_logits(self.region.enter(x_BSH), self.weight)


def tied_head(embedding: Embedding, x_BSH: Tensor) -> Tensor:
    """The head of a tied model: the embedding's matrix."""
    return vocabulary_logits(embedding.region.enter(x_BSH), embedding.weight)


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)` of which only the inputs are kept; no random numbers are drawn in it."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
