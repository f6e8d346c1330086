"""Tokens from a whole decoder, one after another; keys and values of those before are kept.

Shapes: B is 1, T new tokens, S tokens in view, the new ones the last of them, H hidden size, N heads and K
key-value heads, D head size, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partrain.engine.modules import Block, Given, Positions, rotary_table
from partrain.errors import RunError
from partrain.run.sampling import SampleRequest, first_in_view
from partrain.spec.model import ModelSpec


class KeptKeys:
    """An attention core that keeps keys and values: new tokens attend to all that came before."""

    def __init__(self, core: Callable[..., Tensor], room: int) -> None:
        self._core, self._room = core, room
        self._kept: Tensor | None = None
        self.length = 0

    def __call__(
        self, q_BNTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask_TS: Tensor | None, seed: int | None
    ) -> Tensor:
        if self._kept is None:
            _, heads, _, size = k_BKTD.shape
            self._kept = k_BKTD.new_empty(2, 1, heads, self._room, size)
        first, self.length = self.length, self.length + k_BKTD.shape[2]
        self._kept[0, :, :, first : self.length] = k_BKTD
        self._kept[1, :, :, first : self.length] = v_BKTD
        k_BKSD, v_BKSD = self._kept[:, :, :, : self.length]
        return self._core(q_BNTD, k_BKSD, v_BKSD, mask_TS, seed)


class Decoder:
    """A whole decoder that reads a text from its beginning, in any number of pieces."""

    def __init__(self, model: ModelSpec, steps: Sequence[Callable[[Any], Any]], *, context: int) -> None:
        """`steps`: the parts in order, the head last, its own from now on; `context`: the longest text."""
        self._model, self._steps, self._context = model, tuple(steps), context
        self._length = 0
        self._kept = []
        for step in self._steps:
            if isinstance(step, Block):
                kept = KeptKeys(step.attention.core, context)
                step.attention.core = kept
                self._kept.append(kept)

    def forget(self) -> None:
        """Begin another text."""
        self._length = 0
        for kept in self._kept:
            kept.length = 0

    def logits(self, tokens_T: Tensor) -> Tensor:
        """Logits [V], in fp32, of the token after these, which follow those before."""
        first, self._length = self._length, self._length + tokens_T.numel()
        x, given = tokens_T.unsqueeze(0), None
        for step in self._steps:
            if isinstance(step, Block):
                given = self._given(first, x) if given is None else given
                x = step.body(x, given)
            elif isinstance(step, Positions):
                x = x + step.weight[first : self._length]
            else:
                x = step(x)
        x_BTH, weight_VH = x
        return F.linear(x_BTH[0, -1], weight_VH)[: self._model.vocab_size].float()

    def _given(self, first: int, x_BTH: Tensor) -> Given:
        """What blocks get beside `x`, of tokens from `first` on: their positions, and what they see."""
        model, last = self._model, self._length
        cos_TR = sin_TR = mask_TS = None
        if model.position == "rotary":
            table = rotary_table(model, self._context, x_BTH.device, x_BTH.dtype)
            cos_TR, sin_TR = (part[first:last] for part in table)
        window = model.sliding_window or last
        if first or window < last:  # else the causal mask will do
            distance_TS = torch.arange(first, last, device=x_BTH.device).unsqueeze(1) - torch.arange(
                last, device=x_BTH.device
            )
            mask_TS = (distance_TS >= 0) & (distance_TS < window)
        return Given(cos_TR, sin_TR, mask_TS)


@torch.no_grad()
def drawn(decoder: Decoder, request: SampleRequest, device: torch.device) -> Iterator[int]:
    """The tokens that `request` asks for, each as soon as it is there.

    Raises RunError where the model's output is not finite.
    """
    text, generator = list(request.prompt), torch.Generator().manual_seed(request.seed)
    read = start = 0
    for _ in range(request.count):
        oldest = first_in_view(len(text), request.context)
        if oldest > start:
            decoder.forget()
            read = start = oldest
        logits_V = decoder.logits(torch.tensor(text[read:], device=device))
        read = len(text)
        text.append(pick(logits_V[: request.vocabulary].cpu(), request, generator))
        yield text[-1]


def pick(logits_V: Tensor, request: SampleRequest, generator: torch.Generator) -> int:
    """A token drawn by its probability; on the CPU in fp64, so that a seed draws alike on every device."""
    if not logits_V.isfinite().all():
        raise RunError(
            "the model's output is not finite: its training has diverged",
            hint="an older checkpoint: --checkpoint STEP",
        )
    if request.temperature == 0:
        return int(logits_V.argmax())
    below_V = logits_V.double() - logits_V.max()
    likeliest_K, tokens_K = below_V.topk(min(request.top_k or below_V.numel(), below_V.numel()))
    shares_K = (likeliest_K / request.temperature).softmax(dim=0)
    return int(tokens_K[torch.multinomial(shares_K, 1, generator=generator)])
