"""How many elements each buffer of a rank has, from the sizes of its weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

ALIGN = 2
"""Elements a replica's part of a flat buffer is aligned to: 4 bytes of 16-bit numbers
(nccl_start_alignment_factor in deepspeed/runtime/zero/stage_1_and_2.py)."""

ALLREDUCE = 500_000_000
"""Elements that are flattened at once to be reduced without ZeRO or by BF16_Optimizer
(MEMORY_OPT_ALLREDUCE_SIZE in deepspeed/runtime/engine.py)."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """DeepSpeed's buffer sizes, in elements."""

    reduce: int = 500_000_000
    prefetch: int = 50_000_000
    persistence: int = 100_000
    max_reuse: int = 1_000_000_000
    sub_group: int = 1_000_000_000

    @classmethod
    def of(cls, zero_optimization: Mapping[str, object]) -> Buckets:
        """Those of a configuration's `zero_optimization`; what is left out has DeepSpeed's default."""
        keys = {
            "reduce": "reduce_bucket_size",
            "prefetch": "stage3_prefetch_bucket_size",
            "persistence": "stage3_param_persistence_threshold",
            "max_reuse": "stage3_max_reuse_distance",
            "sub_group": "sub_group_size",
        }
        found = {name: zero_optimization.get(key) for name, key in keys.items()}
        return cls(**{name: int(value) for name, value in found.items() if isinstance(value, int | float)})


def quantities(groups: Sequence[Sequence[int]], *, dp: int, buckets: Buckets) -> dict[str, int]:
    """Quantity -> elements on the worst replica.

    `groups`: elements of each weight of each parameter group (with weight decay, without), in order.
    """
    weights = [numel for group in groups for numel in group]
    rank, largest = sum(weights), max(weights)
    flat = [_aligned(sum(group), ALIGN * dp) for group in groups]
    sharded = [sum(-(-numel // dp) for numel in group) for group in groups]
    filled = min(buckets.reduce, rank)
    flattened, sent = _flattened(flat if len(groups) > 1 else [rank])
    persistent = sum(numel for numel in weights if numel <= buckets.persistence)
    gathered, largest_share = rank - persistent, -(-largest // dp)
    # used again, backward, within so many parameters: those of the last layers stay from forward to backward
    kept = buckets.max_reuse // 2 + largest + buckets.prefetch
    return {
        "rank": rank,
        "flat": sum(flat),
        "share": sum(size // dp for size in flat),
        "early share": sum(size // dp for size in flat) if rank > buckets.reduce else 0,
        "largest": largest,
        "largest group": max(size // dp for size in flat),
        "owned": sum(_owned(group, size // dp, dp) for group, size in zip(groups, flat, strict=True)),
        "largest owned": min(largest, max(size // dp for size in flat)),
        "bucket": buckets.reduce,
        "filled": filled,
        "overflow": filled if rank > buckets.reduce else 0,
        "flattened": flattened,
        "sent": sent,
        "sharded": sum(sharded),
        "largest sharded": largest_share,
        "persistent": persistent,
        "gathered": min(gathered, kept) if dp > 1 else 0,
        "gathering": max(largest, buckets.prefetch) if dp > 1 and gathered > kept else 0,
        "sub group": max(_sub_group(group, dp, buckets.sub_group) for group in groups),
    }


def _aligned(numel: int, unit: int) -> int:
    return -(-numel // unit) * unit


def _flattened(tensors: Sequence[int]) -> tuple[int, int]:
    """Elements of the largest copy, and of the largest bucket: a bucket of one tensor is not copied.

    A bucket is closed by the tensor that makes it larger than ALLREDUCE.
    """
    found, held = [], []
    for numel in tensors:
        held.append(numel)
        if sum(held) > ALLREDUCE:
            found.append(held)
            held = []
    found += [held] if held else []
    copies = [(sum(bucket) if len(bucket) > 1 else 0, sum(bucket)) for bucket in found]
    return max(copies, key=lambda copy: 2 * copy[0] + copy[1])


def _sub_group(group: Sequence[int], dp: int, limit: int) -> int:
    """Elements of the largest sub-group's share: one is closed by the weight that takes it to the limit."""
    largest = held = 0
    for numel in group:
        held += -(-numel // dp)
        largest = max(largest, held)
        held = 0 if held >= limit else held
    return largest


def _owned(group: Sequence[int], share: int, dp: int) -> int:
    """Elements of the whole weights that a replica's share of a flat group touches, on the worst replica."""
    ends = list(accumulate(group))
    starts = [0, *ends]
    worst = 0
    for replica in range(dp):
        first, end = replica * share, min((replica + 1) * share, ends[-1])
        if first < end:
            low, high = bisect_right(ends, first), bisect_right(ends, end - 1)
            worst = max(worst, starts[high + 1] - starts[low])
    return worst
