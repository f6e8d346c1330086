"""Is this layout legal; if not, why? One function a rule; each returns a reason or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import gcd, prod

from partrain.errors import Reason
from partrain.layout.arithmetic import (
    blocks_can_be_compiled,
    fp16_needs_a_gpu,
    loss_scale_is_for_fp16,
    offloaded_states_have_an_optimizer,
    optimizer_has_its_device,
    optimizer_has_what_it_needs_of_a_weight,
    tensors_are_counted_uncompiled,
    tf32_is_for_gpus,
    the_kernel_takes_the_attention,
    zero_0_is_for_fp32,
)
from partrain.layout.layout import ZeroStage
from partrain.layout.proposal import Proposal
from partrain.spec.numbers import divisors, listed, neighbours
from partrain.spec.parallel import Offload


def reasons(proposal: Proposal) -> tuple[Reason, ...]:
    """Why `proposal` is not legal, all rules together; empty when it is."""
    found = (rule(proposal) for rule in RULES)
    return tuple(reason for reason in found if reason is not None)


def tp_divides_the_model(wish: Proposal) -> Reason | None:
    """Heads are not cut, and every rank of a tensor group gets as much of the MLP as the others."""
    if wish.model is None:
        return None
    sizes = {name: int(getattr(wish.model, name)) for name in ("num_heads", "num_kv_heads", "mlp_size")}
    undivided = [name for name, size in sizes.items() if size % wish.tp]
    if not undivided:
        return None
    legal = divisors(gcd(*sizes.values()))
    named = ", ".join(f"{name}={sizes[name]}" for name in undivided)
    return Reason(
        ("parallel.tp", *(f"model.{name}" for name in undivided), "model.preset"),
        f"tp={wish.tp} does not divide {named}",
        allowed=listed(legal),
        fix=f"tp: {listed(neighbours(legal, wish.tp), last=' or ')}",
    )


def tensor_degrees(wish: Proposal) -> Iterator[int]:
    """Degrees above 1, smallest first, that `wish` could have with sequence parallelism."""
    for tp in divisors(wish.sequence_length)[1:]:
        fits = wish.dp * wish.pp * tp <= wish.room
        if fits and wish.model is not None and tp_divides_the_model(replace(wish, tp=tp)) is None:
            yield tp


def stages_have_blocks(wish: Proposal) -> Reason | None:
    """The first stage holds the embedding and a block, every other at least a block or the head.

    Every stage needs a weight that decays and one that does not, since the gradient norm is one
    all-reduce for each of the two groups; the embedding alone has none that does not.
    """
    if wish.model is None or wish.pp <= wish.model.num_layers + 1:
        return None
    most = wish.model.num_layers + 1
    return Reason(
        ("parallel.pp", "model.num_layers", "model.preset"),
        f"pp={wish.pp} is more stages than num_layers={wish.model.num_layers} and the head can fill",
        allowed=f"1 to {most}",
        fix=f"pp: {most}",
    )


def batch_is_whole_micro_batches(wish: Proposal) -> Reason | None:
    """global_batch_size = dp x micro_batch_size x micro-batches."""
    batch, dp, micro = wish.global_batch_size, wish.dp, wish.micro_batch_size
    unit = dp * (micro or 1)
    if batch % unit == 0:
        return None
    product = f"dp={dp}" if micro is None else f"dp={dp} x micro_batch_size={micro}"
    fixes = [("global_batch_size", neighbours((batch // unit * unit, (batch // unit + 1) * unit), batch))]
    if micro is not None and batch % dp == 0:
        fixes.append(("micro_batch_size", neighbours(divisors(batch // dp), micro)))
    if batch % (micro or 1) == 0:
        fixes.append(("dp", neighbours(divisors(batch // (micro or 1)), dp)))
    options = ((name, tuple(value for value in values if value)) for name, values in fixes)
    return Reason(
        ("training.micro_batch_size", "parallel.dp", "training.global_batch_size"),
        f"global_batch_size={batch} is not a multiple of {product} ({batch} / {unit} = {batch / unit:.2f})",
        allowed="global_batch_size = dp x micro_batch_size x a whole number of micro-batches",
        fix="; or ".join(f"{name}: {listed(values, last=' or ')}" for name, values in options),
    )


def ramp_reaches_the_batch(wish: Proposal) -> Reason | None:
    """The batch begins below its full size and gets there by whole increments."""
    ramp, batch = wish.batch_ramp, wish.global_batch_size
    if ramp is None or (ramp.start < batch and (batch - ramp.start) % ramp.increment == 0):
        return None
    if ramp.start >= batch:
        return Reason(
            ("training.batch_ramp.start", "training.global_batch_size"),
            f"batch_ramp.start={ramp.start} is not less than global_batch_size={batch}",
            allowed=f"1 to {batch - 1}" if batch > 1 else "",
            fix="leave out batch_ramp",
        )
    legal = divisors(batch - ramp.start)
    return Reason(
        ("training.batch_ramp.increment", "training.batch_ramp.start", "training.global_batch_size"),
        f"increment={ramp.increment} does not divide global_batch_size={batch} - start={ramp.start}"
        f" = {batch - ramp.start}",
        allowed=listed(legal),
        fix=f"increment: {listed(neighbours(legal, ramp.increment), last=' or ')}",
    )


def ramp_is_whole_micro_batches(wish: Proposal) -> Reason | None:
    """Every step's batch is dp x micro_batch_size x a whole number of micro-batches."""
    ramp, unit = wish.batch_ramp, wish.dp * (wish.micro_batch_size or 1)
    if ramp is None or wish.global_batch_size % unit:
        return None  # of the full batch another rule tells
    sizes = {"start": ramp.start, "increment": ramp.increment}
    wrong = {name: size for name, size in sizes.items() if size % unit}
    if not wrong:
        return None
    named = listed((f"{name}={size}" for name, size in wrong.items()), last=" and ")
    near = {name: (size // unit * unit, size // unit * unit + unit) for name, size in wrong.items()}
    fixes = [f"{name}: {listed(filter(None, legal), last=' or ')}" for name, legal in near.items()]
    each, rest = divmod(wish.batch_divisor, wish.dp)
    if wish.micro_batch_size and not rest:
        smaller = listed(neighbours(divisors(each), wish.micro_batch_size), last=" or ")
        fixes.append(f"or micro_batch_size: {smaller}")
    return Reason(
        (*(f"training.batch_ramp.{name}" for name in wrong), "training.micro_batch_size", "parallel.dp"),
        f"{named}: not a multiple of dp={wish.dp} x micro_batch_size={wish.micro_batch_size or 1}",
        allowed=f"multiples of {unit}",
        fix="; ".join(fixes),
    )


def zero_0_has_no_pipeline(wish: Proposal) -> Reason | None:
    """Without ZeRO the pipeline engine clips by the first stage's gradient norm alone."""
    if wish.zero != 0 or wish.pp == 1:
        return None
    return Reason(
        ("parallel.zero", "parallel.pp"),
        f"zero=0 does not go with a pipeline (pp={wish.pp})",
        allowed="zero 0 with pp 1, or zero 1",
        fix="zero: 1, or pp: 1",
    )


def sharded_gradients_have_no_pipeline(wish: Proposal) -> Reason | None:
    """ZeRO 2 and 3 reduce gradients at every micro-batch, the pipeline engine only at the last."""
    if wish.zero < 2 or wish.pp == 1:
        return None
    return Reason(
        ("parallel.zero", "parallel.pp"),
        f"zero={wish.zero} does not go with a pipeline (pp={wish.pp})",
        allowed="zero 1 with a pipeline, or pp 1",
        fix="zero: 1, or pp: 1" if wish.offload == "none" else "pp: 1, or zero: 1 with offload: none",
    )


OFFLOADS: Mapping[Offload, tuple[ZeroStage, ...]] = {
    "none": (0, 1, 2, 3),
    "optimizer": (2, 3),
    "parameters": (3,),
}
"""What is offloaded -> the ZeRO stages that can do it."""


def offload_has_shards_to_move(wish: Proposal) -> Reason | None:
    """Optimizer states go to the host with their share of the gradients, parameters with their own shares."""
    stages = OFFLOADS[wish.offload]
    if wish.zero in stages:
        return None
    could = [f"offload: {other}" for other, legal in OFFLOADS.items() if wish.zero in legal]
    named = listed(stages, last=" or ")
    return Reason(
        ("parallel.offload", "parallel.zero"),
        f"offload={wish.offload} does not go with zero={wish.zero}",
        allowed=f"offload {wish.offload} with zero {named}",
        fix=f"zero: {named}; or {could[-1]}",
    )


def sequence_parallel_has_a_tensor_group(wish: Proposal) -> Reason | None:
    """The sequence is split inside a tensor group."""
    if not wish.sequence_parallel or wish.tp > 1:
        return None
    legal = next(tensor_degrees(wish), None)
    none = (
        ""
        if legal or wish.model is None
        else "; no larger tp divides heads, MLP and sequence and has devices"
    )
    return Reason(
        ("parallel.sequence_parallel", "parallel.tp"),
        f"sequence_parallel=true needs a tensor group, and tp=1{none}",
        allowed="tp 2 or more with sequence_parallel true",
        fix="sequence_parallel: false" + (f", or tp: {legal}" if legal else ""),
    )


def sequence_parallel_divides_the_sequence(wish: Proposal) -> Reason | None:
    """Every rank of a tensor group gets as many positions as the others."""
    length, tp = wish.sequence_length, wish.tp
    if not wish.sequence_parallel or length % tp == 0:
        return None
    near = neighbours((length // tp * tp, (length // tp + 1) * tp), length)
    return Reason(
        ("parallel.sequence_parallel", "training.sequence_length", "parallel.tp"),
        f"tp={tp} does not divide sequence_length={length}, which sequence_parallel=true needs",
        allowed=f"a multiple of {tp}",
        fix=f"sequence_length: {listed(filter(None, near), last=' or ')}; or sequence_parallel: false",
    )


def world_fits_the_hardware(wish: Proposal) -> Reason | None:
    """Every rank has a device of its own; without GPUs ranks are processes that share the cores."""
    room, each = wish.room, wish.room // wish.nodes
    if wish.world_size <= room:
        return None
    on_cpu = wish.machine.device == "cpu"
    degrees = sorted((("dp", wish.dp), ("tp", wish.tp), ("pp", wish.pp)), key=lambda item: -item[1])
    ranks = f"dp={wish.dp} x pp={wish.pp} x tp={wish.tp} = {wish.world_size} ranks"
    kind = "ranks (the most on a CPU)" if on_cpu else wish.machine.name
    return Reason(
        (*(f"parallel.{name}" for name, _ in degrees), "hardware.nodes", "hardware.node"),
        f"{ranks} are more than the {room} of {wish.nodes} x {each} {kind}",
        allowed=f"dp x pp x tp up to {room}",
        fix="; or ".join(_smaller_worlds(degrees, room, each)),
    )


def _smaller_worlds(degrees: list[tuple[str, int]], room: int, each: int) -> list[str]:
    """What one change brings the ranks into `room`, or gives them room."""
    world = prod(value for _, value in degrees)
    fits = [(name, divisors(value), room // (world // value)) for name, value in degrees]
    smaller = [f"{name}: {neighbours(legal, most)[0]}" for name, legal, most in fits if most]
    return [*smaller[:1], *([f"hardware.nodes: {-(-world // each)}"] if each else [])]


RULES: tuple[Callable[[Proposal], Reason | None], ...] = (
    tp_divides_the_model,
    stages_have_blocks,
    batch_is_whole_micro_batches,
    ramp_reaches_the_batch,
    ramp_is_whole_micro_batches,
    zero_0_is_for_fp32,
    fp16_needs_a_gpu,
    loss_scale_is_for_fp16,
    zero_0_has_no_pipeline,
    sharded_gradients_have_no_pipeline,
    offload_has_shards_to_move,
    optimizer_has_its_device,
    optimizer_has_what_it_needs_of_a_weight,
    offloaded_states_have_an_optimizer,
    sequence_parallel_has_a_tensor_group,
    sequence_parallel_divides_the_sequence,
    world_fits_the_hardware,
    blocks_can_be_compiled,
    tensors_are_counted_uncompiled,
    the_kernel_takes_the_attention,
    tf32_is_for_gpus,
)
