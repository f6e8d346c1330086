"""What a setting costs in time, roughly: seconds of a step from FLOPs and bytes, to order changes by.

The rates below are round numbers of machines as they are, good for an order and no promise: a model of the
step's time takes their place once there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from partrain.model.shape import layer_flops, parameters
from partrain.plan.plan import Plan
from partrain.plan.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device reaches."""

    flops: float
    """FLOP/s where the catalogue has no peak; of a core on CPUs."""
    reached: float
    """Part of the peak that training reaches."""
    node: float
    """Bytes/s of a collective between the devices of a node."""
    network: float
    """The same between nodes, a device."""
    host: float
    """Bytes/s between a device and its host."""
    host_memory: float
    """Bytes/s of a host's own memory, all ranks of a node together."""
    kernel_s: float
    """Seconds that starting a kernel takes."""


RATES: Mapping[str, Rates] = {
    # Of the peak 38 % to 46 % (Chowdhery et al. 2022, PaLM; Dubey et al. 2024, Llama 3, table 4). NVLink of
    # an A100 in NCCL's all-reduce, a NIC of 200 Gbit/s at three quarters, PCIe 4 x16 at three quarters, a
    # socket's memory (github.com/stas00/ml-engineering, chapters on network and accelerators).
    "cuda": Rates(
        flops=312e12, reached=0.45, node=235e9, network=18e9, host=25e9, host_memory=100e9, kernel_s=7e-6
    ),
    # A core multiplies some tens of GFLOP/s; ranks exchange through the host's memory.
    "cpu": Rates(flops=50e9, reached=1.0, node=2e9, network=1e8, host=10e9, host_memory=10e9, kernel_s=5e-6),
}
KERNELS_A_BLOCK = 60
"""Kernels that a block starts in a forward and a backward pass, about."""
ADAM_BYTES = 28
"""Bytes that an update reads and writes a parameter: gradient, weight and two moments in fp32, all but the
gradient written too."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Seconds of a step, part by part."""

    arithmetic: float
    recompute: float
    kernels: float
    bubble: float
    tensor: float
    data: float
    host: float

    @property
    def total_s(self) -> float:
        """All parts, one after the other."""
        return float(sum(getattr(self, key.name) for key in fields(self)))


SLOWER_BY: Mapping[str, str] = {
    "recompute": "more is computed twice",
    "kernels": "more and smaller kernels",
    "bubble": "pipeline stages wait longer",
    "tensor": "more bytes inside tensor groups",
    "data": "more bytes between replicas",
    "host": "the host updates the weights",
}
"""Part of a price -> what it means when it grows."""


def price(setting: Setting, plan: Plan) -> Price:
    """Seconds of a step of `plan`'s job with this setting."""
    rates, model, at = RATES[plan.machine.device], plan.model, setting
    batch = plan.layout.global_batch_size
    num_micro_batches = batch // (at.dp * at.micro_batch_size)
    tokens = batch * at.sequence_length / at.world_size
    flops = layer_flops(model, at.sequence_length)
    a_second = _flops(plan, at)
    again = {"none": 0.0, "selective": _core_flops(plan, at), "full": sum(flops[1:-1])}[at.recompute]
    blocks = model.num_layers / at.pp
    arithmetic, recompute = (3 * sum(flops)) * tokens / a_second, again * tokens / a_second
    kernels = num_micro_batches * blocks * KERNELS_A_BLOCK * rates.kernel_s
    return Price(
        arithmetic=arithmetic,
        recompute=recompute,
        kernels=kernels,
        bubble=(arithmetic + recompute + kernels) * (at.pp - 1) / num_micro_batches,
        tensor=_tensor_bytes(plan, at) * num_micro_batches / _link(at.tp, plan),
        data=_data_bytes(plan, at, num_micro_batches) / _link(at.dp * at.tp * at.pp, plan),
        host=_host_seconds(plan, at, num_micro_batches, rates),
    )


def ranks_and_tokens(setting: Setting, plan: Plan) -> float:
    """Devices over tokens of a step; on CPUs ranks share the cores, and their number does not count."""
    ranks = 1 if plan.machine.device == "cpu" else setting.world_size
    return ranks / (plan.layout.global_batch_size * setting.sequence_length)


def relative_price(before: Setting, after: Setting, plan: Plan) -> float:
    """Device time a token with `after` over that with `before`."""
    old, new = (price(at, plan).total_s * ranks_and_tokens(at, plan) for at in (before, after))
    return float(new / old)


def _flops(plan: Plan, at: Setting) -> float:
    """FLOP/s of a rank; on CPUs ranks share the cores, however many they are."""
    machine, rates = plan.machine, RATES[plan.machine.device]
    if machine.device == "cpu":
        return rates.flops * machine.num_devices / at.world_size
    peak = machine.fp32_flops if plan.training.precision == "fp32" else machine.bf16_flops
    return rates.reached * (peak or rates.flops)


def _core_flops(plan: Plan, at: Setting) -> float:
    """Forward FLOPs a token of attention's two products, in all blocks."""
    model = plan.model
    attended = min(at.sequence_length, model.sliding_window or at.sequence_length)
    return 4.0 * attended * model.num_heads * model.head_size * model.num_layers


def _number(plan: Plan) -> int:
    return 4 if plan.training.precision == "fp32" else 2


def _link(ranks: int, plan: Plan) -> float:
    """Bytes/s between that many ranks that follow one another."""
    rates = RATES[plan.machine.device]
    on_node = plan.machine.device == "cpu" or ranks <= plan.machine.num_devices
    return rates.node if on_node else rates.network


def _tensor_bytes(plan: Plan, at: Setting) -> float:
    """Bytes that a rank sends of a micro-batch: four all-reduces a block, two more where it is computed
    again (Narayanan et al. 2021, section 3.2)."""
    reduces = 6 if at.recompute == "full" else 4
    tokens = at.micro_batch_size * at.sequence_length
    whole = tokens * plan.model.hidden_size * _number(plan) * plan.model.num_layers / at.pp
    return reduces * whole * 2 * (at.tp - 1) / at.tp


def _data_bytes(plan: Plan, at: Setting, num_micro_batches: int) -> float:
    """Bytes that a rank sends a step to the other replicas: gradients reduced, parameters gathered; from
    ZeRO 2 on with every micro-batch (Rajbhandari et al. 2020, section 7)."""
    held = parameters(plan.model) / (at.pp * at.tp) * (at.dp - 1) / at.dp
    each = _number(plan)
    if at.zero < 2:
        return held * (2 * 4 if at.zero == 0 else 4 + each)
    gathered = 2 * num_micro_batches if at.zero == 3 else 1
    return held * each * (num_micro_batches + gathered)


def _host_seconds(plan: Plan, at: Setting, num_micro_batches: int, rates: Rates) -> float:
    """Seconds in which a node's host updates what it holds, gradients and parameters on their way too."""
    if at.offload == "none":
        return 0.0
    share = parameters(plan.model) / at.world_size
    passes = 2 * num_micro_batches if at.offload == "parameters" else 1
    moved = share * _number(plan) * (1 + passes) / rates.host
    ranks = min(at.world_size, plan.machine.num_devices) if plan.machine.device != "cpu" else at.world_size
    return moved + share * ranks * ADAM_BYTES / rates.host_memory
