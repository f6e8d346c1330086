"""Which model states, gradients and buffers an optimizer wrapper keeps, when: one table a wrapper.

DeepSpeed picks the wrapper by precision, ZeRO stage and gradient accumulation
(`_do_optimizer_sanity_check` in deepspeed/runtime/engine.py), and the same "ZeRO 1" is another law with
another wrapper. A row is bytes an element of some quantity (`cost/quantities.py`) at some moments.
"""

from __future__ import annotations

from dataclasses import dataclass

from partrain.model.profile import BYTES

Phase = str
"""One of `ALWAYS`, or `construction`. `first forward` and `first backward` are of a step before any weight
has a gradient, `forward` and `backward` of the micro-batches after; `accumulation` is between a backward
pass and the next pass."""

ALWAYS: frozenset[Phase] = frozenset(
    ("first forward", "first backward", "forward", "backward", "accumulation", "reduction", "norm", "step",
     "gather", "evaluation", "checkpoint")
)  # fmt: skip
TO_REDUCTION: frozenset[Phase] = frozenset(("forward", "backward", "accumulation", "reduction"))
TO_STEP: frozenset[Phase] = TO_REDUCTION | {"norm", "step"}
BACKWARD: frozenset[Phase] = frozenset(("first backward", "backward", "accumulation", "reduction"))
BUILT = ALWAYS | {"construction"}


@dataclass(frozen=True)
class Row:
    """Bytes an element of a quantity, at some moments."""

    name: str
    each: int
    of: str
    """A quantity of `cost/quantities.py`."""
    when: frozenset[Phase]
    shared: bool = False
    """Whether each replica has a part of its own."""
    on_host: bool = False


@dataclass(frozen=True, kw_only=True)
class Law:
    """An optimizer wrapper's table."""

    name: str
    rows: tuple[Row, ...]
    gradients_stay: bool
    """Whether the gradient of a weight stays where backward makes it; else it goes into a buffer at once."""
    source: str


def _phases(*names: Phase) -> frozenset[Phase]:
    return frozenset(names)


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """What decides the law."""

    zero: int
    precision: str
    grad_accum: str
    """Number format in which gradients are accumulated."""
    pipeline: bool
    """Whether the pipeline engine runs it."""
    offload: str
    states: int = 8
    """Bytes of optimizer states a parameter: two moments in fp32 for Adam."""
    gloo: bool = False
    """Whether collectives are gloo's, on CPUs, which copies what it scatters."""
    master: int = 4
    """Bytes of a master weight."""


def law_of(wrapper: Wrapper) -> Law:
    """The law of the wrapper that DeepSpeed 0.19.8 picks.

    Raises ValueError where it has none.
    """
    low, master = BYTES[wrapper.precision], BYTES["fp32"]
    is_low = low < master
    if wrapper.zero == 0 and not is_low:
        return _plain(wrapper)
    if wrapper.zero == 1 and is_low and wrapper.grad_accum == "fp32" and wrapper.precision == "bf16":
        return _bf16(wrapper)
    if wrapper.zero == 1:
        return _zero_1(wrapper, low)
    if wrapper.zero == 2:
        return _zero_2(wrapper, low)
    if wrapper.zero == 3:
        return _zero_3(wrapper, low)
    raise ValueError(f"no wrapper for ZeRO {wrapper.zero} in {wrapper.precision}")


def _optimizer_rows(wrapper: Wrapper, *, quantity: str, host: bool = False) -> tuple[Row, ...]:
    """Master weights, beside fp32 weights too, and states, which come with the first step."""
    return (
        Row("master weights", wrapper.master, quantity, BUILT, shared=True, on_host=host),
        Row("optimizer states", wrapper.states, quantity, ALWAYS, shared=True, on_host=host),
    )


def _plain(wrapper: Wrapper) -> Law:
    return Law(
        name="the optimizer itself",
        rows=(
            Row("parameters", 4, "rank", BUILT),
            Row("optimizer states", wrapper.states, "rank", ALWAYS),
            Row("gradients", 4, "rank", TO_STEP),
            Row("gradients, flattened to be reduced", 4, "flattened", _phases("reduction")),
        ),
        gradients_stay=True,
        source="deepspeed 0.19.8 runtime/engine.py: buffered_allreduce_fallback, allreduce_bucket",
    )


def _bf16(wrapper: Wrapper) -> Law:
    """Gradients of every micro-batch are added to flat fp32 ones that live as long as the job."""
    return Law(
        name="BF16_Optimizer",
        rows=(
            Row("parameters", 2, "flat", BUILT),
            Row("parameters, before they are flat", 2, "rank", _phases("construction")),
            *_optimizer_rows(wrapper, quantity="share"),
            Row("gradients in fp32", 4, "flat", BUILT),
            Row("gradients", 2, "rank", TO_STEP),
            Row("a gradient in fp32 while it is added", 4, "largest", _phases("accumulation")),
            Row("gradients, flattened to be reduced", 4, "flattened", _phases("reduction")),
            Row("gradients, in the format they are sent in", 2, "sent", _phases("reduction")),
        ),
        gradients_stay=True,
        source="deepspeed 0.19.8 runtime/bf16_optimizer.py; runtime/engine.py: allreduce_bucket",
    )


def _zero_1(wrapper: Wrapper, low: int) -> Law:
    """With a pipeline there are two buckets: of the first gradient's hook, and of the reduction."""
    accumulate = BYTES[wrapper.grad_accum]
    separate = (
        (Row("gradients, as backward makes them", low, "largest", BACKWARD),) if accumulate != low else ()
    )
    pipeline = (Row("reduction bucket, a second one", accumulate, "bucket", _phases("reduction")),)
    return Law(
        name="ZeRO stage 1",
        rows=(
            Row("parameters", low, "flat", BUILT),
            Row("parameters, before they are flat", low, "rank", _phases("construction")),
            *_optimizer_rows(wrapper, quantity="share"),
            Row("gradients", accumulate, "rank", TO_REDUCTION),
            *separate,
            Row("reduction bucket", accumulate, "bucket", BACKWARD | {"forward"}),
            *(pipeline if wrapper.pipeline else ()),
            Row(
                "gradients of whole weights in this rank's share",
                accumulate,
                "owned",
                _phases("norm", "step"),
            ),
            Row("gradients of this rank's share, flat", 4, "largest group", _phases("step"), shared=True),
            Row("a gradient in fp64 for the norm", 8, "largest owned", _phases("norm")),
        ),
        gradients_stay=True,
        source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py: reduce_gradients, setup_buckets, step",
    )


def _zero_2(wrapper: Wrapper, low: int) -> Law:
    """Gradients go into the bucket at once; what is reduced stays as this rank's share."""
    host, compact = wrapper.offload != "none", BYTES[wrapper.grad_accum] != low
    gradients: tuple[Row, ...]
    if compact:
        gradients = (
            Row("gradients of this rank's share in fp32", 4, "share", TO_STEP, shared=True),
            Row("the same, as buckets fill", 4, "early share", _phases("first backward"), shared=True),
        )
    else:
        gradients = (
            Row("gradients of whole weights in this rank's share", low, "owned", TO_STEP),
            Row("the same of this micro-batch", low, "owned", _phases("accumulation")),
            Row("gradients of this rank's share, flat", 4, "largest group", _phases("step"), shared=True),
        )
    offloaded = (
        (
            Row("gradients of this rank's share", 4, "share", BUILT, shared=True, on_host=True),
            Row("parameters of this rank's share", low, "share", BUILT, shared=True, on_host=True),
            Row("a gradient on its way to the host", low, "largest", BUILT),
            Row("a gradient on its way from the device", low, "largest", BUILT, on_host=True),
        )
        if host
        else ()
    )
    return Law(
        name="ZeRO stage 2",
        rows=(
            Row("parameters", low, "flat", BUILT),
            Row("parameters, before they are flat", low, "rank", _phases("construction")),
            *_optimizer_rows(wrapper, quantity="share", host=host),
            *gradients,
            *offloaded,
            Row("reduction bucket", low, "bucket", BACKWARD),
            Row("bucket, flattened to be reduced", low, "overflow", _phases("first backward", "backward")),
            Row("bucket, flattened to be reduced", low, "filled", _phases("reduction")),
            Row("a gradient in fp64 for the norm", 8, "largest owned", _phases("norm")),
        ),
        gradients_stay=False,
        source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py: setup_buckets, average_tensor, step",
    )


def _sub_group(wrapper: Wrapper, accumulate: int) -> tuple[Row, ...]:
    """A sub-group's gradients are flattened, and converted where the master weights have another format."""
    step = _phases("step")
    flat = Row("gradients of a sub-group, flat", accumulate, "sub group", step, shared=True)
    wide = Row("the same in the master weights' format", wrapper.master, "sub group", step, shared=True)
    return (flat, wide) if accumulate != wrapper.master else (flat,)


def _zero_3(wrapper: Wrapper, low: int) -> Law:
    """Everything is a share; layers are gathered whole while they work."""
    host, parameters_away = wrapper.offload != "none", wrapper.offload == "parameters"
    accumulate = BYTES[wrapper.grad_accum]
    scattered = Row("bucket, copied by gloo", low, "filled", _phases("accumulation"))
    gloo = (scattered,) if wrapper.gloo else ()
    walk = _phases("first forward", "first backward", "forward", "backward")
    return Law(
        name="ZeRO stage 3",
        rows=(
            Row(
                "parameters of this rank's share", low, "sharded", BUILT, shared=True, on_host=parameters_away
            ),
            Row("weights that stay whole", low, "persistent", BUILT),
            *_optimizer_rows(wrapper, quantity="sharded", host=host),
            Row("gradients of this rank's share", accumulate, "sharded", BUILT, shared=True, on_host=host),
            *(
                (Row("gradients for the optimizer", 4, "sharded", BUILT, shared=True, on_host=True),)
                if host
                else ()
            ),
            Row("master weights, copied", wrapper.master, "sub group", _phases("construction"), shared=True),
            Row("reduction bucket", low, "bucket", BUILT),
            Row("gathered weights", low, "gathered", walk | {"evaluation"}),
            Row("weights on their way", low, "gathering", walk | {"evaluation"}),
            Row("bucket, flattened to be reduced", low, "overflow", _phases("first backward", "backward")),
            Row("bucket, flattened to be reduced", low, "filled", _phases("accumulation")),
            *gloo,
            *(() if host else _sub_group(wrapper, accumulate)),
            Row("a gradient in fp64 for the norm", 8, "largest sharded", _phases("norm")),
        ),
        gradients_stay=False,
        source="deepspeed 0.19.8 runtime/zero/stage3.py, partition_parameters.py, "
        "partitioned_param_coordinator.py; runtime/comm/coalesced_collectives.py",
    )
