"""Which activations are dropped: a pure function of sample and place, whatever the layout.

The mask law. An element is kept when the 32 bits that a hash gives it, as a signed number, reach
`rate * 2**32 - 2**31`. With `mix` the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), G its
increment, and every sum and product wrapping:

    token  = mix(mix(mix(seed + G) + position + G) + t + G)     64 bits
    row    = mix(token + (site + 1) * G)                        its words: low, high
    column = low word of mix((h + 1) * G)
    x      = (column ^ low) * 0x7FEB352D
    bits   = ((x ^ (x >> 15)) + high) * 0x846CA68B              32 bits, >> keeps the sign

`position` counts the samples of the whole training, `t` the tokens of its sequence, `h` the hidden width.
`site` is 0 for embeddings, 2b + 1 and 2b + 2 for what attention and MLP of block b add. The multipliers are
those of lowbias32 (Wellons, "Prospecting for hash functions", 2018). Shapes: B sequences, S tokens this rank
holds, H hidden size; a row is one token's key at one site.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from partrain.data.order import positions
from partrain.engine.tensor_parallel import SEQUENCE_DIM, Region
from partrain.layout.layout import Layout
from partrain.plan.batch_ramp import layout_in, phase_at
from partrain.plan.plan import TrainingPlan

_INCREMENT, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROW_FIRST, _ROW_SECOND = 0x7FEB352D, 0x846CA68B - 2**32
EMBEDDING_SITE = 0


def signed(value: int) -> int:
    """`value` modulo 2^64 as torch's int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63


def mixed(x: Tensor) -> Tensor:
    """splitmix64's finaliser of every element, int64; its shifts bring in zeros."""
    x = (x ^ (x >> 30 & 2**34 - 1)) * signed(_FIRST)
    x = (x ^ (x >> 27 & 2**37 - 1)) * signed(_SECOND)
    return x ^ (x >> 31 & 2**33 - 1)


@lru_cache(maxsize=4)
def columns(size: int, device: torch.device) -> Tensor:
    """[H], int32."""
    index = torch.arange(1, size + 1, device=device)
    return mixed(index * signed(_INCREMENT)).unsqueeze(-1).view(torch.int32)[:, 0].contiguous()


class Mask(NamedTuple):
    """What decides of every element of [B, S, H]."""

    row_BS2: Tensor
    column_H: Tensor


def dropped(x_BSH: Tensor, mask: Mask | None, rate: float) -> Tensor:
    """`x` without a part `rate` of its elements, the rest scaled up for it; all of it without a mask."""
    if mask is None:
        return x_BSH
    low_BS1, high_BS1 = mask.row_BS2[..., :1], mask.row_BS2[..., 1:]
    bits_BSH = (mask.column_H ^ low_BS1) * _ROW_FIRST
    bits_BSH = ((bits_BSH ^ (bits_BSH >> 15)) + high_BS1) * _ROW_SECOND
    return torch.where(bits_BSH >= round(rate * 2**32) - 2**31, x_BSH / (1 - rate), 0.0)


@dataclass
class Samples:
    """The samples that this rank's modules are at work on: told by the train loop, read in forward passes."""

    training: TrainingPlan
    layout: Layout
    replica: int
    region: Region
    step: int = 0
    micro_batch: int = -1
    _tokens: Tensor | None = field(default=None, init=False, repr=False)
    """Keys [B, S] of the micro-batch's tokens, the same at every site."""

    def begin(self, step: int) -> None:
        """The forward passes that come are those of `step`, its micro-batches in order."""
        self.step, self.micro_batch, self._tokens = step, -1, None

    def follow(self, module: nn.Module) -> None:
        """Every forward pass of `module` in training is the next micro-batch."""
        module.register_forward_pre_hook(self._advance)

    def _advance(self, module: nn.Module, _inputs: object) -> None:
        if module.training:
            self.micro_batch += 1
            self._tokens = None

    @property
    def first(self) -> int:
        """Position of the micro-batch's first sample. Raises ValueError when there is no such micro-batch."""
        phase = phase_at(self.step, self.training, self.layout)
        step, layout = self.step - phase.first_step + 1, layout_in(phase, self.layout)
        place = {"replica": self.replica, "micro_batch": self.micro_batch, "first": phase.first_sequence}
        return positions(step, layout, **place).start

    def mask(self, x_BSH: Tensor, site: int) -> Mask:
        """The mask of `x` at `site`, in this micro-batch."""
        if self._tokens is None:
            self._tokens = self._token_keys(x_BSH)
        row_BS = mixed(self._tokens + signed((site + 1) * _INCREMENT))
        row_BS2 = row_BS.unsqueeze(-1).view(torch.int32)
        return Mask(row_BS2, columns(x_BSH.shape[-1], x_BSH.device))

    def _token_keys(self, x_BSH: Tensor) -> Tensor:
        held, device = x_BSH.shape[SEQUENCE_DIM], x_BSH.device
        length = held * self.region.group.size if self.region.sequence_parallel else held
        start = torch.full((1,), signed(self.training.seed + _INCREMENT), device=device)
        sample_B = torch.arange(self.first, self.first + x_BSH.shape[0], device=device)
        sample_B = mixed(mixed(start) + sample_B + signed(_INCREMENT))
        token_S = torch.arange(length, device=device)[self.region.tokens(length)]
        return mixed(sample_B.unsqueeze(1) + token_S + signed(_INCREMENT))

    def attention_seed(self, block: int) -> int:
        """Seed of the kernel's own random numbers: each block, tensor rank, micro-batch, replica and step has
        a stream of its own. Heads and samples share it, so its bits depend on the layout."""
        place = (self.first, block, self.region.group.rank)
        key = torch.tensor([signed(self.training.seed + 1)])
        for number in place:
            key = mixed(key + signed(number + _INCREMENT))
        return int(key) & 2**63 - 1


class EmbeddingDropout(nn.Module):
    """The end of layer 0: [B, S, H] -> [B, S, H]."""

    def __init__(self, samples: Samples, rate: float) -> None:
        super().__init__()
        self.samples, self.rate = samples, rate

    def forward(self, x_BSH: Tensor) -> Tensor:
        mask = self.samples.mask(x_BSH, EMBEDDING_SITE) if self.training else None
        return dropped(x_BSH, mask, self.rate)


def seed_kernels(seed: int, device: torch.device) -> None:
    """The next random numbers of torch's kernels on `device` are those of `seed`."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
