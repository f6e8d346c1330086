"""Rules on numbers, optimizers and kernels: what goes with the layout and the device."""

from __future__ import annotations

from partrain.errors import Reason
from partrain.layout.proposal import Proposal
from partrain.spec.numbers import listed
from partrain.spec.optimizers import OPTIMIZERS


def zero_0_is_for_fp32(wish: Proposal) -> Reason | None:
    """Without ZeRO there are no fp32 master weights to accumulate 16-bit gradients into."""
    if wish.zero != 0 or wish.precision == "fp32":
        return None
    return Reason(
        ("parallel.zero", "training.precision"),
        f"zero=0 does not go with precision={wish.precision}",
        allowed="zero 0 with precision fp32, or zero 1",
        fix="zero: 1, or precision: fp32",
    )


def fp16_needs_a_gpu(wish: Proposal) -> Reason | None:
    """DeepSpeed refuses fp16 on CPUs, few of which compute in it."""
    if wish.precision != "fp16" or wish.machine.device != "cpu":
        return None
    return Reason(
        ("training.precision", "hardware.node"),
        "precision=fp16 came on a CPU",
        allowed="fp32 or bf16 on CPUs",
        fix="precision: fp32 or bf16",
    )


def loss_scale_is_for_fp16(wish: Proposal) -> Reason | None:
    """Other formats have the range of fp32, and nothing to scale."""
    if wish.loss_scale == "dynamic" or wish.precision == "fp16":
        return None
    return Reason(
        ("training.loss_scale", "training.precision"),
        f"loss_scale={wish.loss_scale:g} does not go with precision={wish.precision}",
        allowed="a loss scale with precision fp16",
        fix="leave out loss_scale, or precision: fp16",
    )


def optimizer_has_its_device(wish: Proposal) -> Reason | None:
    """An optimizer may be written for GPUs alone."""
    if wish.machine.device in OPTIMIZERS[wish.optimizer].devices:
        return None
    legal = [name for name, facts in OPTIMIZERS.items() if wish.machine.device in facts.devices]
    return Reason(
        ("training.optimizer.name", "hardware.node"),
        f"name={wish.optimizer} came on a {wish.machine.device.upper()}",
        allowed=f"{', '.join(legal)}",
        fix="name: adamw",
    )


def optimizer_has_what_it_needs_of_a_weight(wish: Proposal) -> Reason | None:
    """Muon works on whole matrices, of which ZeRO 3 leaves a part of each on every rank."""
    stages = OPTIMIZERS[wish.optimizer].zero
    if wish.zero in stages:
        return None
    named = listed(stages, last=" or ")
    near = [stage for stage in stages if stage] if wish.pp == 1 else [1]
    return Reason(
        ("training.optimizer.name", "parallel.zero"),
        f"name={wish.optimizer} does not go with zero={wish.zero}, which leaves no rank a whole weight",
        allowed=f"{wish.optimizer} with zero {named}",
        fix=f"zero: {listed(near, last=' or ')}; or name: adamw or lion",
    )


def offloaded_states_have_an_optimizer(wish: Proposal) -> Reason | None:
    """An offloaded optimizer steps in host memory."""
    if wish.offload == "none" or OPTIMIZERS[wish.optimizer].offload:
        return None
    legal = [name for name, facts in OPTIMIZERS.items() if facts.offload]
    return Reason(
        ("training.optimizer.name", "parallel.offload"),
        f"name={wish.optimizer} does not go with offload={wish.offload}",
        allowed=f"{' or '.join(legal)} with offload",
        fix=f"offload: none; or name: {' or '.join(legal)}",
    )


def blocks_can_be_compiled(wish: Proposal) -> Reason | None:
    """ZeRO 3 gathers weights between a block's parts, and the kernel's random numbers are seeded there."""
    dropout = wish.model is not None and wish.model.attention_dropout > 0
    if not wish.compile or (wish.zero < 3 and not dropout):
        return None
    if dropout:
        with_what, ways = "attention_dropout", ("model.attention_dropout", "attention_dropout: 0")
    else:
        with_what, ways = "zero=3", ("parallel.zero", "zero: 2")
    return Reason(
        ("training.compile", ways[0]),
        f"compile=true does not go with {with_what}",
        allowed="compile true with zero 0 to 2 and attention_dropout 0",
        fix=f"compile: false, or {ways[1]}",
    )


def tensors_are_counted_uncompiled(wish: Proposal) -> Reason | None:
    """What a compiled program makes within itself is not seen by who counts an operation's tensors."""
    if not (wish.compile and wish.track_memory and wish.machine.device == "cpu"):
        return None
    return Reason(
        ("monitor.track_memory", "training.compile"),
        "track_memory=true does not go with compile=true on CPUs",
        allowed="one of them",
        fix="compile: false, or track_memory: false",
    )


FLASH_HEAD_SIZE = 256
"""Widest head of torch's flash kernel on GPUs (aten/native/transformers/cuda/sdp_utils.cpp)."""


def the_kernel_takes_the_attention(wish: Proposal) -> Reason | None:
    """Torch raises on the ranks where the one kernel that may be used does not take the operands."""
    against = _against_kernel(wish)
    if against is None:
        return None
    path, because = against
    return Reason(
        ("training.attention", path),
        f"attention={wish.attention} does not go with {because}",
        allowed="torch or math, which go with everything",
        fix="attention: auto",
    )


def _against_kernel(wish: Proposal) -> tuple[str, str] | None:
    """The key that the kernel cannot have, and what it says."""
    model, on_cpu = wish.model, wish.machine.device == "cpu"
    if wish.attention == "efficient" and on_cpu:
        return "hardware.node", "a CPU, which has no such kernel"
    if wish.attention != "flash":
        return None
    if not on_cpu and wish.precision == "fp32":
        return "training.precision", "precision=fp32: on GPUs the kernel is for 16 bits"
    if model is None:
        return None
    if on_cpu and model.attention_dropout:
        return "model.attention_dropout", f"attention_dropout={model.attention_dropout:g} on a CPU"
    if not on_cpu and model.sliding_window is not None and model.sliding_window < wish.sequence_length:
        return "model.sliding_window", f"sliding_window={model.sliding_window}, which needs a mask"
    if not on_cpu and model.head_size > FLASH_HEAD_SIZE:
        return "model.head_size", f"head_size={model.head_size}: {FLASH_HEAD_SIZE} is its widest"
    return None


def tf32_is_for_gpus(wish: Proposal) -> Reason | None:
    """CPUs have no TF32."""
    if not wish.tf32 or wish.machine.device != "cpu":
        return None
    return Reason(
        ("training.tf32", "hardware.node"),
        "tf32=true does not go with a CPU: it is a format of NVIDIA's GPUs",
        allowed="tf32 true on GPUs",
        fix="tf32: false",
    )
