"""A rank of a Megatron-LM job: its layers, parameters, states and the micro-batches in flight."""

from __future__ import annotations

from dataclasses import dataclass

from bench.memory_model.megatron import Layers, layers_of
from bench.memory_model.rows import Row, Shape, Unusable, shape_of
from partrain.cost.estimate import WAITING, Moment, Term
from partrain.cost.laws import ALWAYS, Law
from partrain.cost.laws import Row as LawRow
from partrain.cost.stage import StageWork, held, moments
from partrain.cost.walk import walk
from partrain.model.tape import Tape

MIB = 2**20
HOPPER_OR_LATER = ("H100", "H200", "H800", "B200", "GB200", "B300", "GB300")


def workspaces(row: Row) -> int:
    """Bytes of cuBLAS' workspaces, of the forward and of autograd's thread, and of Transformer Engine's.

    Megatron's functional tests set CUBLAS_WORKSPACE_CONFIG to 8 x 4 MiB, what Hopper has anyway; else
    8.125 MiB (aten/src/ATen/cuda/CublasHandlePool.cpp). Transformer Engine has 32 MiB from Hopper on and 4
    before (transformer_engine/pytorch/module/base.py).
    """
    if row.is_of_2021:
        return 0  # torch of 2021 takes them outside of its allocator
    late = row["hardware"] in HOPPER_OR_LATER
    fixed = late or row.source == "megatron"
    engine = (32 if late else 4) * MIB if row["profile"] == "megatron-te" else 0
    return 2 * (32 * MIB if fixed else 8_519_680) + engine


@dataclass(frozen=True)
class Stage:
    """Which layers a rank has."""

    index: int
    blocks: int
    is_first: bool
    is_last: bool


def stage_of(row: Row, shape: Shape) -> Stage:
    """The stage that was measured; `max` is the only one, or the one that holds most."""
    named = row["stage"]
    index = {"": 0, "max": 0, "first": 0, "middle": shape.pp // 2, "last": shape.pp - 1}.get(named)
    if index is None:
        if not named.isdigit():
            raise Unusable(f"stage {named!r} is no one stage")
        index = int(named)
    blocks = row.count("stage_layers", 0) or -(-shape.layers // shape.pp)
    return Stage(index, blocks, index == 0, index == shape.pp - 1)


def in_flight(shape: Shape, index: int) -> int:
    """Chunks of layers whose activations a rank holds at most: 1F1B, or interleaved (Narayanan et al. 2021,
    section 2.2; forward_backward_pipelining_with_interleaving in megatron/core/pipeline_parallel)."""
    pp, chunks, batches = shape.pp, shape.chunks, shape.micro_batches
    if chunks == 1:
        return min(pp - index, batches)
    warm_up = (pp - index - 1) * 2 + (chunks - 1) * pp
    return min(warm_up + 1, batches * chunks)


def block_parameters(layers: Layers, *, dense: bool) -> tuple[int, int]:
    """Parameters of a block on a rank: what all data-parallel ranks have, and its experts."""
    shape = layers.shape
    h, t = shape.hidden, shape.tp
    norms = (1 if shape.rms else 2) * h * 2
    if layers.mla is not None:
        mla, heads = layers.mla, shape.heads // t
        attention = h * (mla.query_rank + mla.kv_rank + mla.rope) + mla.query_rank + mla.kv_rank
        attention += mla.query_rank * heads * (mla.nope + mla.rope)
        attention += mla.kv_rank * heads * (mla.nope + mla.value) + heads * mla.value * h
    else:
        query, key = shape.heads * shape.head_dim // t, shape.kv_heads * shape.head_dim // t
        attention = h * (2 * query + 2 * key)
        attention += (query + 2 * key + h) if shape.bias else 0
    gates = 3 if shape.gated else 2
    if dense or layers.experts is None:
        mlp = gates * h * shape.mlp // t
        mlp += (shape.mlp // t * (gates - 1) + h) if shape.bias else 0
        return norms + attention + mlp, 0
    experts = layers.experts
    shared = gates * h * experts.shared // t
    own = experts.count // shape.ep * gates * h * experts.width // experts.tp
    return norms + attention + shared + h * experts.count, own


def parameters(layers: Layers, stage: Stage, num_dense: int) -> tuple[int, int]:
    """Parameters of a rank, as for a block."""
    shape = layers.shape
    found = [block_parameters(layers, dense=index < num_dense) for index in range(stage.blocks)]
    common, own = (sum(part) for part in zip(*found, strict=True))
    table = shape.vocab // shape.tp * shape.hidden
    if stage.is_first:
        common += table + (shape.sequence * shape.hidden if shape.learned else 0)
    if stage.is_last:
        common += (1 if shape.rms else 2) * shape.hidden
        common += 0 if shape.tied and stage.is_first else table
    return common, own


def law_2021() -> Law:
    """Megatron-LM of spring 2021: fp16 gradients and the buckets of data parallelism beside them, and fp32
    gradients of the master weights that are not cleared (Float16OptimizerWithFloat16Params.zero_grad)."""
    return Law(
        name="mixed-precision optimizer of 2021",
        rows=(
            LawRow("parameters", 2, "rank", ALWAYS),
            LawRow("gradients", 2, "rank", ALWAYS),
            LawRow("gradients in the buckets of data parallelism", 2, "rank", ALWAYS),
            LawRow("master weights and states", 12, "rank", ALWAYS),
            LawRow("gradients of master weights", 4, "rank", ALWAYS),
        ),
        gradients_stay=False,
        source="megatron/optimizer/optimizer.py and megatron/model/distributed.py of 2021",
    )


def law(shared: bool) -> Law:
    """bf16 weights, fp32 gradients that live as long as the job, fp32 master weights and Adam's states."""
    return Law(
        name="distributed optimizer" if shared else "mixed-precision optimizer",
        rows=(
            LawRow("parameters", 2, "rank", ALWAYS),
            LawRow("gradients in fp32", 4, "rank", ALWAYS),
            LawRow("master weights and states", 12, "share", ALWAYS, shared=shared),
        ),
        gradients_stay=False,
        source="megatron/core/optimizer/distrib_optimizer.py, distributed/param_and_grad_buffer.py",
    )


def stage_work(row: Row) -> StageWork:
    """All that decides the memory of the rank that was measured."""
    shape = shape_of(row)
    layers, stage = layers_of(row, shape), stage_of(row, shape)
    num_dense = row.count("dense_layers", stage.blocks if layers.experts is None else 0)
    common, own = parameters(layers, stage, num_dense)
    shared = row["zero_stage"] == "1"
    ranks = shape.dp * shape.cp if shared else 1
    expert_ranks = max(
        1, shape.dp * shape.cp * shape.tp // (shape.ep * (layers.experts.tp if layers.experts else 1))
    )
    share = common // ranks + own // (expert_ranks if shared else 1)
    tapes: list[tuple[Tape, int]] = []
    if stage.is_first:
        tapes.append((layers.embedding(), 1))
    dense = min(num_dense, stage.blocks)
    tapes += [(layers.block(), dense), (layers.block(dense=False), stage.blocks - dense)]
    if stage.is_last:
        tapes.append((layers.head(), 1))
    tapes = [(tape, count) for tape, count in tapes if count]
    return StageWork(
        layers=tuple(tapes),
        law=law_2021() if row.is_of_2021 else law(shared),
        quantities={
            "rank": common + own,
            "share": share,
        },
        fill=in_flight(shape, stage.index) if shape.chunks == 1 else 1,
        num_micro_batches=shape.micro_batches,
        always=(*_interleaved(row, shape, stage, layers), *_fixed(row, layers, dense, stage)),
        each=(),
    )


def _fixed(row: Row, layers: Layers, dense: int, stage: Stage) -> tuple[Term, ...]:
    shape = layers.shape
    dummies = layers.dummies(dense=dense > 0, experts=dense < stage.blocks)
    logits = shape.tokens * shape.vocab // shape.tp * shape.each
    # the functional test of that name makes the head's weight gradient of two micro-batches after the others
    # (--wgrad-deferral-limit 2 in its model_config.yaml)
    deferred = min(2, shape.micro_batches) if "defer_embedding_wgrad" in row["model"] else 0
    found = (
        Term("gradients of logits that wait", deferred * (logits + layers.wide), f"{deferred} x logits"),
        Term("workspaces of matrix products", workspaces(row), "cuBLAS and Transformer Engine"),
        Term("stand-ins for gradients", dummies, "one for each shape of weight"),
    )
    return tuple(term for term in found if term.bytes)


def _interleaved(row: Row, shape: Shape, stage: Stage, layers: Layers) -> tuple[Term, ...]:
    """Chunks in flight beyond those that are walked, and what is sent and received both ways."""
    if shape.chunks == 1:
        return ()
    chunks = in_flight(shape, stage.index)
    block = walk(layers.block()).held
    waiting = max(chunks - shape.chunks, 0) * stage.blocks // shape.chunks
    if stage.is_last and "embedding counted in pipeline split" in row["remarks"]:
        waiting = (chunks - 1) * stage.blocks // (shape.chunks - 1) - stage.blocks  # the last chunk has none
    return (
        Term(f"activations {WAITING}", waiting * block, f"{waiting} blocks"),
        Term("on their way", 4 * layers.narrow, "activations and gradients, sent and received"),
    )


def predict(row: Row) -> tuple[Moment, ...]:
    """Every moment of the rank."""
    return moments(stage_work(row))


__all__ = ["predict", "stage_work", "held"]
