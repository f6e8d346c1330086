"""The global order of samples: a pure function of seed and position, the same under every layout.

Sample i of a dataset is the window of tokens [i * T, i * T + T + 1): T inputs and, one further, T labels.
Position p counts the samples of a training from 0. It belongs to epoch p // num_samples, and each epoch
visits every sample once, in a pseudo-random order of its own that is computed, never stored.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

from partrain.layout.layout import Layout

_MASK = (1 << 64) - 1
_NUM_ROUNDS = 8


def positions(step: int, layout: Layout, *, replica: int, micro_batch: int, first: int = 0) -> range:
    """Positions that `replica` works on in one micro-batch of `step` (the first step is 1).

    Where steps of another size came before, `step` counts those of this size, and `first` is its first
    position.

    A step's global batch is cut into one contiguous part a replica, and that into its micro-batches, so
    the parts joined in this order are the same under every layout:

    >>> from partrain.layout.layout import Layout
    >>> layout = Layout(dp=2, pp=1, tp=1, zero=1, sequence_parallel=False, micro_batch_size=2,
    ...                 num_micro_batches=3, recompute="none", stage_bounds=(0, 4))
    >>> positions(1, layout, replica=0, micro_batch=0), positions(2, layout, replica=1, micro_batch=2)
    (range(0, 2), range(22, 24))
    """
    if step < 1 or not 0 <= replica < layout.dp or not 0 <= micro_batch < layout.num_micro_batches:
        raise ValueError(f"step {step}, replica {replica}, micro-batch {micro_batch} is not in {layout}")
    parts_before = ((step - 1) * layout.dp + replica) * layout.num_micro_batches + micro_batch
    start = first + parts_before * layout.micro_batch_size
    return range(start, start + layout.micro_batch_size)


def sample_index(position: int, *, num_samples: int | None, seed: int) -> int:
    """Sample at `position`; without an end (`num_samples` None) every position has a sample of its own."""
    if num_samples is None:
        return position
    epoch, place = divmod(position, num_samples)
    return _permuted(place, num_samples, _round_keys(seed, epoch))


def _permuted(place: int, size: int, keys: tuple[int, ...]) -> int:
    """Image of `place` under a permutation of range(size) chosen by `keys`.

    A Feistel network on pairs (left, right) of a grid of rows x columns >= size; an image outside
    range(size) is sent through again (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002). The grid has fewer than 2 sqrt(size) + 1 places too many, so that is rare.
    """
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    while True:
        left, right = divmod(place, columns)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _mixed(right ^ first)) % rows
            right = (right + _mixed(left ^ second)) % columns
        place = left * columns + right
        if place < size:
            return place


def _mixed(x: int) -> int:
    """64 well-mixed bits of `x`: the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """A 64-bit key for each round; the same on every machine."""
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=8 * _NUM_ROUNDS).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8))
