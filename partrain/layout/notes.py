"""What a user should know of a legal layout; one function a note, each returns a sentence or None."""

from __future__ import annotations

from collections.abc import Callable

from partrain.layout.proposal import Proposal
from partrain.model.shape import padded_vocab
from partrain.spec.numbers import divisors


def notes(proposal: Proposal) -> tuple[str, ...]:
    """All that is worth saying of `proposal`, which is legal."""
    found = (note(proposal) for note in NOTES)
    return tuple(note for note in found if note is not None)


def padded_vocabulary(wish: Proposal) -> str | None:
    """Vocabulary shards are equal and aligned."""
    if wish.model is None:
        return None
    rows, padded = wish.model.vocab_size, padded_vocab(wish.model, wish.tp)
    if rows == padded:
        return None
    shards = f" on each of tp={wish.tp} shards" if wish.tp > 1 else ""
    return f"vocabulary {rows} is padded to {padded}: a multiple of 8{shards}"


def idle_devices(wish: Proposal) -> str | None:
    """Devices without a rank."""
    there = wish.nodes * wish.machine.num_devices
    if wish.machine.device == "cpu" or wish.world_size >= there:
        return None
    room = there // (wish.pp * wish.tp)
    micro_batches = wish.batch_divisor // (wish.micro_batch_size or 1)
    dp = max(value for value in divisors(micro_batches) if value <= room)
    advice = f"; dp: {dp} would use {dp * wish.pp * wish.tp}" if dp > wish.dp else ""
    return f"{there - wish.world_size} of {there} devices stay idle{advice}"


def bubble(wish: Proposal) -> str | None:
    """Stages wait while the pipeline fills and drains (Narayanan et al. 2021, section 2.2.1)."""
    if wish.pp == 1:
        return None
    waits, works = wish.pp - 1, wish.num_micro_batches
    share = f"{waits / (works + waits):.0%}"
    said = (
        f"pp={wish.pp} with {works} micro-batches: stages wait {share} of a step ({waits} of {works + waits})"
    )
    return f"{said}; fewer micro-batches than stages" if works < wish.pp else said


def tensor_group_across_nodes(wish: Proposal) -> str | None:
    """Tensor parallelism talks several times a layer, at the speed of the slowest link."""
    each = wish.machine.num_devices
    if wish.machine.device == "cpu" or not each or wish.tp == 1 or each % wish.tp == 0:
        return None
    return f"tp={wish.tp} does not divide the {each} devices of a node: some tensor groups span two nodes"


def ranks_share_cores(wish: Proposal) -> str | None:
    """Without GPUs ranks are processes on the same cores."""
    cores = wish.nodes * wish.machine.num_devices
    if wish.machine.device != "cpu" or wish.world_size <= cores:
        return None
    return f"{wish.world_size} ranks share {cores} cores: this shows that it works, not how fast it is"


def offload_to_itself(wish: Proposal) -> str | None:
    """Without GPUs the device's memory is the host's."""
    if wish.offload == "none" or wish.machine.device != "cpu":
        return None
    return f"offload={wish.offload} saves nothing on a CPU, whose memory is the host's"


def attention_dropout_by_layout(wish: Proposal) -> str | None:
    """The kernel draws the random numbers of the heads and samples it is given."""
    if wish.model is None or not wish.model.attention_dropout:
        return None
    return (
        f"attention_dropout={wish.model.attention_dropout:g}: which probabilities are dropped depends on the "
        "layout, so losses of two layouts agree in distribution only"
    )


NOTES: tuple[Callable[[Proposal], str | None], ...] = (
    padded_vocabulary,
    idle_devices,
    bubble,
    tensor_group_across_nodes,
    ranks_share_cores,
    offload_to_itself,
    attention_dropout_by_layout,
)
