"""The tokens of a step, and the look at all tokens before the first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from partrain.data.order import positions, sample_index
from partrain.data.sources import ArraySource, Tokens, TokenSource
from partrain.layout.layout import Layout

_CHUNK_TOKENS = 2**22


def batch(
    source: TokenSource, layout: Layout, *, step: int, replica: int, micro_batch: int, first: int = 0
) -> Tokens:
    """One micro-batch of `replica`: [micro_batch_size, sequence_length + 1] tokens.

    `step` and `first` as in `positions`. Inputs are all but the last token of a row, labels all but the
    first. Raises DataError when the data cannot be read or a token is not in the vocabulary.
    """
    places = positions(step, layout, replica=replica, micro_batch=micro_batch, first=first)
    return rows(source, (sample_index(p, num_samples=source.num_samples, seed=source.seed) for p in places))


def rows(source: TokenSource, indices: Iterable[int]) -> Tokens:
    """The samples at `indices`: [number of them, sequence_length + 1] tokens. Raises as `batch` does."""
    return np.stack([source.sample(index) for index in indices])


def check_tokens(source: TokenSource, *, part: int, parts: int) -> None:
    """Look at share `part` of `parts` of a dataset, so that all ranks together have seen every token.

    Raises DataError at the first token that is not in the vocabulary.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} is not one of {parts}")
    if not isinstance(source, ArraySource):
        return
    size = source.tokens.size
    end = size * (part + 1) // parts
    for start in range(size * part // parts, end, _CHUNK_TOKENS):
        source.checked(start, min(start + _CHUNK_TOKENS, end))
