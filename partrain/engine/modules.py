"""The decoder's layers, in pipeline order, built from the weight table on the meta device.

Shapes: B sequences, T tokens, S tokens this rank holds outside a region, H hidden size, N heads and K
key-value heads of this rank, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partrain.engine.attention import AttentionCore, window_mask
from partrain.engine.dropout import Mask, Samples, dropped
from partrain.engine.execution import PLAIN, Execution, compiled
from partrain.engine.loss import HeadOutput
from partrain.engine.tensor_parallel import (
    SEQUENCE_DIM,
    ColumnLinear,
    Region,
    RowLinear,
    VocabularyEmbedding,
    parameter,
)
from partrain.model.decoder import EMBEDDING, HEAD, POSITIONS, block_prefix, decoder_weights
from partrain.model.weights import Weight
from partrain.spec.model import GATED, ModelSpec

Table = Mapping[str, Weight]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": F.silu,
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Of the gate, where there is one."""


def weight_table(model: ModelSpec) -> Table:
    """The model's weights by name."""
    return {weight.name: weight for weight in decoder_weights(model)}


@lru_cache(maxsize=4)
def rotary_table(
    model: ModelSpec, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, R] of the R rotated elements of a head, their two halves equal (Su et al. 2021,
    in GPT-NeoX's order)."""
    index = torch.arange(0, model.rotary_size, 2, device=device, dtype=torch.float32)
    frequency = model.rope_theta ** (-index / model.rotary_size)
    if model.rope_scaling is not None:
        frequency = _scaled(frequency, model)
    angle_TR = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency).repeat(1, 2)
    return angle_TR.cos().to(dtype), angle_TR.sin().to(dtype)


def _scaled(frequency: Tensor, model: ModelSpec) -> Tensor:
    """Llama 3.1's stretching: low frequencies divided by `factor`, high ones kept, a ramp between them."""
    wish = model.rope_scaling
    assert wish is not None
    turns = wish.original_max_positions * frequency / (2 * math.pi)
    keep = (turns - wish.low_freq_factor) / (wish.high_freq_factor - wish.low_freq_factor)
    keep = keep.clamp(0, 1)
    return frequency * keep + frequency / wish.factor * (1 - keep)


def rotated(x_BTND: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """`x` with each pair (i, i + R/2) of its first R elements turned by its position's angle."""
    size = cos_TR.shape[-1]
    if size < x_BTND.shape[-1]:
        return torch.cat((rotated(x_BTND[..., :size], cos_TR, sin_TR), x_BTND[..., size:]), dim=-1)
    first, second = x_BTND.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BTND * cos_TR.unsqueeze(1) + turned * sin_TR.unsqueeze(1)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over H, outside the region; `per_head`: over D, inside it."""

    def __init__(
        self, model: ModelSpec, table: Table, name: str, region: Region, *, per_head: bool = False
    ) -> None:
        super().__init__()
        self.whole = region.inside if per_head else region.outside
        self.eps, self.zero_centered = model.norm_eps, model.zero_centered_norm
        self.weight = parameter(table[f"{name}.weight"], region.group)
        bias = table.get(f"{name}.bias")
        self.bias = parameter(bias, region.group) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.whole(self.weight)
        if self.zero_centered:  # 1 + w in 16 bits would lose w
            return F.rms_norm(x.float(), weight.shape, weight.float() + 1, self.eps).to(x.dtype)
        if self.bias is None:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        return F.layer_norm(x, weight.shape, weight, self.whole(self.bias), self.eps)


def _column(table: Table, name: str, region: Region) -> ColumnLinear:
    return ColumnLinear(table[f"{name}.weight"], table.get(f"{name}.bias"), region.group)


def _row(table: Table, name: str, region: Region) -> RowLinear:
    return RowLinear(table[f"{name}.weight"], table.get(f"{name}.bias"), region)


class Given(NamedTuple):
    """What a block reads beside the residual stream, made outside of it: so compiled blocks share one
    program, and a block that is computed again gets the same again."""

    cos_TR: Tensor | None = None
    sin_TR: Tensor | None = None
    window_TT: Tensor | None = None
    """In the place of the causal mask, where a window is shorter than the sequence."""
    after_attention: Mask | None = None
    after_mlp: Mask | None = None
    attention_seed: int | None = None


class Attention(nn.Module):
    """Causal self-attention; each rank has some of the heads."""

    def __init__(
        self,
        model: ModelSpec,
        table: Table,
        prefix: str,
        *,
        region: Region,
        recompute: bool,
        core: Callable[..., Tensor],
    ) -> None:
        super().__init__()
        self.model, self.recompute, self.core = model, recompute, core
        self.query = _column(table, f"{prefix}.query", region)
        self.key = _column(table, f"{prefix}.key", region)
        self.value = _column(table, f"{prefix}.value", region)
        self.query_norm = self.key_norm = None
        if model.qk_norm:
            self.query_norm = Norm(model, table, f"{prefix}.query_norm", region, per_head=True)
            self.key_norm = Norm(model, table, f"{prefix}.key_norm", region, per_head=True)
        self.output = _row(table, f"{prefix}.output", region)

    def forward(self, x_BTH: Tensor, given: Given) -> Tensor:
        heads = (*x_BTH.shape[:2], -1, self.model.head_size)
        q_BTND, k_BTKD, v_BTKD = (part(x_BTH).view(heads) for part in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            q_BTND, k_BTKD = self.query_norm(q_BTND), self.key_norm(k_BTKD)
        if given.cos_TR is not None and given.sin_TR is not None:
            q_BTND, k_BTKD = (rotated(part, given.cos_TR, given.sin_TR) for part in (q_BTND, k_BTKD))
        qkv = (part.transpose(1, 2) for part in (q_BTND, k_BTKD, v_BTKD))
        inputs = (*qkv, given.window_TT, given.attention_seed)
        y_BNTD = _recomputed(self.core, *inputs) if self.recompute else self.core(*inputs)
        return self.output(y_BNTD.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two or three matrices around a non-linearity; each rank has some of the inner width."""

    def __init__(self, model: ModelSpec, table: Table, prefix: str, region: Region) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[model.activation]
        self.gate = _column(table, f"{prefix}.gate", region) if model.activation in GATED else None
        self.up = _column(table, f"{prefix}.up", region)
        self.down = _row(table, f"{prefix}.down", region)

    def forward(self, x_BTH: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTH)))
        return self.down(self.activation(self.gate(x_BTH)) * self.up(x_BTH))


class Embedding(VocabularyEmbedding):
    """Layer 0, its tokens. On a later stage that holds the tied head, only its weight is used."""

    def __init__(self, model: ModelSpec, table: Table, region: Region) -> None:
        super().__init__(table[EMBEDDING], region)
        self.scale = math.sqrt(model.hidden_size) if model.scale_embeddings else None

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BSH = super().forward(tokens_BT)
        return x_BSH if self.scale is None else x_BSH * self.scale


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

    def __init__(
        self,
        model: ModelSpec,
        table: Table,
        block: int,
        *,
        region: Region,
        recompute: str,
        execution: Execution = PLAIN,
    ) -> None:
        super().__init__()
        prefix = block_prefix(block)
        self.region, self.recompute, self.model = region, recompute == "full", model
        self.attention_norm = Norm(model, table, f"{prefix}.attention_norm", region)
        core, selective = AttentionCore(execution.kernel, model.attention_dropout), recompute == "selective"
        self.attention = Attention(
            model, table, f"{prefix}.attention", region=region, recompute=selective, core=core
        )
        self.mlp_norm = None
        if model.block != "parallel_one_norm":
            self.mlp_norm = Norm(model, table, f"{prefix}.mlp_norm", region)
        self.mlp = Mlp(model, table, f"{prefix}.mlp", region)
        self.given = partial(given_to, model=model, block=block, region=region, samples=execution.samples)
        # Compiled with its recomputation: what the compiler itself saves in a first call would be taken for
        # the block's otherwise.
        self.run = compiled(self.kept) if execution.compile else self.kept

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.run(x_BSH, self.given(x_BSH, training=self.training))

    def kept(self, x_BSH: Tensor, given: Given) -> Tensor:
        """The block, of which as much is kept for the backward pass as was asked for."""
        return _recomputed(self.body, x_BSH, given) if self.recompute else self.body(x_BSH, given)

    def body(self, x_BSH: Tensor, given: Given) -> Tensor:
        """The block itself."""
        model = self.model
        normed_BTH = self.region.enter(self.attention_norm(x_BSH))
        added_BSH = dropped(self.attention(normed_BTH, given), given.after_attention, model.dropout)
        attended_BSH = x_BSH + added_BSH
        if self.mlp_norm is not None:
            read_BSH = attended_BSH if model.block == "sequential" else x_BSH
            normed_BTH = self.region.enter(self.mlp_norm(read_BSH))
        return attended_BSH + dropped(self.mlp(normed_BTH), given.after_mlp, model.dropout)


def given_to(
    x_BSH: Tensor, *, model: ModelSpec, block: int, region: Region, samples: Samples | None, training: bool
) -> Given:
    """What `block` gets beside `x`; dropout in training only."""
    held = x_BSH.shape[SEQUENCE_DIM]
    length = held * region.group.size if region.sequence_parallel else held
    cos_TR = sin_TR = window_TT = after_attention = after_mlp = seed = None
    if model.position == "rotary":
        cos_TR, sin_TR = rotary_table(model, length, x_BSH.device, x_BSH.dtype)
    if model.sliding_window is not None and model.sliding_window < length:
        window_TT = window_mask(length, model.sliding_window, x_BSH.device)
    if training and model.dropout:
        assert samples is not None
        after_attention, after_mlp = (samples.mask(x_BSH, 2 * block + site) for site in (1, 2))
    if training and model.attention_dropout:
        assert samples is not None
        seed = samples.attention_seed(block)
    return Given(cos_TR, sin_TR, window_TT, after_attention, after_mlp, seed)


class Head(nn.Module):
    """The last layer's matrix, handed on with the hidden states: their product is part of the loss."""

    def __init__(self, table: Table, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = parameter(table[HEAD], region.group)

    def forward(self, x_BSH: Tensor) -> HeadOutput:
        return _handed_on(x_BSH, self.weight, self.region)


def tied_head(embedding: Embedding, x_BSH: Tensor) -> HeadOutput:
    """The head of a tied model: the embedding's matrix."""
    return _handed_on(x_BSH, embedding.weight, embedding.region)


def _handed_on(x_BSH: Tensor, weight_VH: Tensor, region: Region) -> HeadOutput:
    """Both operands as results of an operation: DeepSpeed prepares its backward pass in hooks on these, and
    a leaf's gradient would be there before them (bf16 lost the head's: norms 3 % off)."""
    return region.enter(x_BSH), weight_VH.view_as(weight_VH)


def _recomputed(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """`function(*inputs)` of which only the inputs are kept, its random numbers' seed among them."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
