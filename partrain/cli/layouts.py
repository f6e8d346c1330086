"""How a plan is shown: its layout, its stages, its ranks."""

from __future__ import annotations

from typing import Any

from partrain.cli import render
from partrain.layout.ranks import coordinate_of
from partrain.plan.batch_ramp import phase_at, phases
from partrain.plan.plan import Plan, StagePlan
from partrain.units import format_bytes, format_count

_MOST_RANKS_SHOWN = 32
"""A larger rank map is cut in the middle: it follows one rule, and --json has the degrees."""


HELD_BY_HOST = {
    "none": "",
    "optimizer": ", optimizer states in host memory",
    "parameters": ", parameters and optimizer states in host memory",
}


def chosen(plan: Plan) -> dict[str, Any]:
    """The layout as `partrain plan --json` gives it."""
    layout = plan.layout
    memory = [stage.memory for stage in plan.stages if stage.memory]
    return {
        "dp": layout.dp,
        "pp": layout.pp,
        "tp": layout.tp,
        "sequence_parallel": layout.sequence_parallel,
        "zero": layout.zero,
        "micro_batch_size": layout.micro_batch_size,
        "num_micro_batches": layout.num_micro_batches,
        "recompute": layout.recompute,
        "offload": layout.offload,
        "peak_bytes": max((stage.peak_bytes for stage in memory), default=None),
        "device_bytes": max((stage.device_bytes for stage in memory), default=None),
    }


def show_layout(plan: Plan) -> None:
    """What is trained, on what, in which layout."""
    layout, machine = plan.layout, plan.machine
    memory = f" of {format_bytes(machine.memory_bytes)}" if machine.memory_bytes else ""
    kind = "cores" if machine.device == "cpu" else machine.name + memory
    length = plan.training.sequence_length
    tokens = layout.global_batch_size * length
    split = ", sequence parallel" if layout.sequence_parallel else ""
    host = HELD_BY_HOST[layout.offload]
    render.pairs(
        {
            "job": f"{plan.name}: {format_count(plan.parameters)} parameters, {plan.training.precision}",
            "data": plan.data.source,
            "hardware": f"{plan.nodes} x {machine.num_devices} {kind}, {machine.origin}",
            "layout": f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp} = {_ranks(layout.world_size)}"
            f", ZeRO {layout.zero}{split}{host}",
            "recompute": layout.recompute,
            "batch": f"{layout.global_batch_size} sequences = dp {layout.dp} x {layout.num_micro_batches}"
            f" micro-batches of {layout.micro_batch_size}; {format_count(tokens)} tokens a step",
            **_ramp(plan),
            "steps": f"{plan.training.steps}: {format_count(_sequences(plan) * length)} tokens",
            **_evaluation(plan),
        }
    )


def _sequences(plan: Plan) -> int:
    """Of all steps together."""
    steps = plan.training.steps
    return phase_at(steps, plan.training, plan.layout).sequences_after(steps)


def _ramp(plan: Plan) -> dict[str, str]:
    """How the batch rises."""
    ramp = plan.training.batch_ramp
    if ramp is None:
        return {}
    last = phases(ramp, plan.layout.global_batch_size)[-1]
    rise = f"from {ramp.start} sequences by {ramp.increment} over {format_count(ramp.samples)}"
    return {"batch ramp": f"{rise}, whole from step {last.first_step} on"}


def _evaluation(plan: Plan) -> dict[str, str]:
    """What is evaluated and when."""
    wish = plan.evaluation
    if wish is None:
        return {}
    what = f"{wish.num_sequences} sequences of {wish.data.source}"
    if wish.data == plan.data:
        what = f"{wish.num_sequences} sequences of the data, from number {wish.first} on not trained on"
    return {"validation": f"{what}; every {wish.every} steps and at the end"}


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def show_stages(plan: Plan) -> None:
    """Which layers each pipeline stage holds, and its predicted memory."""
    last = plan.layout.stage_bounds[-1] - 1
    rows = [
        (str(stage.stage), _layers(stage, last), f"{stage.parameters:,}", _peak(stage))
        for stage in plan.stages
    ]
    numbers = ("parameters a rank", "predicted peak")
    render.say()
    render.table(("stage", "layers", *numbers), rows, right=numbers)


def _peak(stage: StagePlan) -> str:
    return format_bytes(stage.memory.peak_bytes) if stage.memory else ""


def _layers(stage: StagePlan, last: int) -> str:
    """The layers of a stage in words; block 1 is the first after the embedding."""
    first_block, last_block = max(stage.first, 1), min(stage.last, last - 1)
    blocks = f"blocks {first_block}-{last_block}" if first_block < last_block else f"block {first_block}"
    parts = (
        "embedding" if stage.first == 0 else "",
        blocks if first_block <= last_block else "",
        "head" if stage.last == last else "",
    )
    return ", ".join(part for part in parts if part)


def show_ranks(plan: Plan) -> None:
    """Which rank sits where: node, device, coordinates."""
    layout = plan.layout
    rows = [rank_row(plan, rank) for rank in range(layout.world_size)]
    half = _MOST_RANKS_SHOWN // 2
    if len(rows) > _MOST_RANKS_SHOWN:
        rows = [*rows[:half], ("...",) * len(rows[0]), *rows[-half:]]
    render.say()
    render.table(("rank", "node", "device", "dp", "pp", "tp"), rows, right=("rank", "node", "dp", "pp", "tp"))


def rank_row(plan: Plan, rank: int) -> tuple[str, ...]:
    """A line of the rank map."""
    at = coordinate_of(rank, plan.layout)
    node, local = divmod(rank, plan.machine.num_devices) if plan.machine.device != "cpu" else (0, rank)
    device = "cpu" if plan.machine.device == "cpu" else f"{plan.machine.device}:{local}"
    return (str(rank), str(node), device, str(at.dp), str(at.pp), str(at.tp))
