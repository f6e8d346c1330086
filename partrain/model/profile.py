"""A runtime profile: facts about the kernels that a runtime's operators come down to, never fitted numbers.

Which tensors an operator keeps depends on the kernel that runs it: a decoder block keeps nearly twice as
much where its norms are made of single operators as where they are fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of a number."""


@dataclass(frozen=True, kw_only=True)
class NormKernel:
    """What a norm keeps and makes, in bytes an element of its input unless said otherwise."""

    keeps_input: bool = True
    """Whether the input itself is kept."""
    copies: int = 0
    """Copies made for the backward pass: the input in fp32, the normed input."""
    statistics: int
    """Bytes a token, of means and inverse deviations."""
    forward_work: int = 0
    backward_work: int = 0
    """Beside the gradient of the input."""


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """A kernel of scaled_dot_product_attention and what it can take."""

    name: str
    precisions: tuple[str, ...]
    takes_groups: bool = False
    """Whether fewer key than query heads go in as they are; else each is repeated."""
    takes_mask: bool = False
    takes_dropout: bool = True
    """Whether it drops probabilities itself, from a seed."""
    keeps_scores: bool = False
    """Whether the softmax over all pairs of tokens is kept; else one number a token and head (Dao et al.
    2022, section 3.1)."""
    repeats_backward: bool = False
    """Whether gradients of keys and values are made for every query head, then summed."""
    backward_work: int = 0
    """Bytes an element of the query, beside the three gradients: sums in fp32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RuntimeProfile:
    """The kernels of a runtime on one kind of device."""

    name: str
    norms: Mapping[tuple[str, str], NormKernel]
    """(rmsnorm, zero_centered or layernorm; precision) -> its kernel."""
    attention: tuple[AttentionKernel, ...]
    """In the order in which they are tried."""
    mixed_sum_work: int
    """Bytes an element of the copy in fp32 that is made of a 16-bit tensor to add it to one in fp32."""
    block_bytes: int
    """Every tensor takes a multiple of this."""
    workspace_bytes: int
    """What the library of matrix products takes inside the allocator, all threads together."""
    source: str


MATH = AttentionKernel(
    name="math",
    precisions=("fp32", "bf16", "fp16"),
    takes_groups=True,
    takes_mask=True,
    keeps_scores=True,
)
"""What torch falls back to on every device."""

CPU = RuntimeProfile(
    name="partrain's engine on CPUs",
    norms={
        ("rmsnorm", "fp32"): NormKernel(copies=4, statistics=4, backward_work=12),
        ("zero_centered", "fp32"): NormKernel(copies=4, statistics=4, backward_work=12),
        **dict.fromkeys(
            (("rmsnorm", "bf16"), ("zero_centered", "bf16"), ("rmsnorm", "fp16"), ("zero_centered", "fp16")),
            NormKernel(keeps_input=False, copies=8, statistics=4, forward_work=4, backward_work=14),
        ),
        ("layernorm", "fp32"): NormKernel(statistics=8),
        ("layernorm", "bf16"): NormKernel(statistics=4),
        ("layernorm", "fp16"): NormKernel(statistics=4),
    },
    attention=(
        AttentionKernel(
            name="flash on CPUs",
            precisions=("fp32", "bf16", "fp16"),
            takes_groups=True,
            takes_mask=True,
            takes_dropout=False,
        ),
        MATH,
    ),
    mixed_sum_work=4,
    block_bytes=1,
    workspace_bytes=0,
    source="torch 2.13: what each operator saves on a CPU, and the allocator's events around it",
)

GPU = RuntimeProfile(
    name="partrain's engine on NVIDIA GPUs",
    norms={
        **dict.fromkeys(
            (("rmsnorm", "fp32"), ("rmsnorm", "bf16"), ("rmsnorm", "fp16")), NormKernel(statistics=4)
        ),
        ("zero_centered", "fp32"): NormKernel(statistics=4),
        **dict.fromkeys(
            (("zero_centered", "bf16"), ("zero_centered", "fp16")),
            NormKernel(keeps_input=False, copies=4, statistics=4, forward_work=4, backward_work=8),
        ),
        **dict.fromkeys(
            (("layernorm", "fp32"), ("layernorm", "bf16"), ("layernorm", "fp16")), NormKernel(statistics=8)
        ),
    },
    attention=(
        AttentionKernel(
            name="flash",
            precisions=("bf16", "fp16"),
            takes_groups=True,
            repeats_backward=True,
            backward_work=4,
        ),
        AttentionKernel(name="memory-efficient", precisions=("fp32", "bf16", "fp16"), takes_mask=True),
        MATH,
    ),
    mixed_sum_work=0,
    block_bytes=512,
    workspace_bytes=2 * 32 * 2**20,
    source=(
        "torch 2.13: aten/src/ATen/native/layer_norm.cpp, transformers/cuda/sdp_utils.cpp, "
        "transformers/cuda/flash_attn/flash_api.cpp; c10/cuda/CUDACachingAllocator.cpp; "
        "aten/src/ATen/cuda/CublasHandlePool.cpp (32 MiB a handle and stream from Hopper on, two threads)"
    ),
)

PROFILES: Mapping[str, RuntimeProfile] = {"cpu": CPU, "cuda": GPU}
"""Kind of device -> the engine's profile on it."""
