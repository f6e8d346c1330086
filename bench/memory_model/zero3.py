"""DeepSpeed's ZeRO 3 under three models: a script's post-norm encoder, Hugging Face's decoders, and
Megatron-LM of 2021.

The optimizer's law is the product's own (`partrain/cost/laws.py`); what differs is which tensors operators
keep and what DeepSpeed had in its release.
"""

from __future__ import annotations

from bench.memory_model.deepspeed_2021 import LOCAL
from bench.memory_model.megatron import Layers
from bench.memory_model.megatron_stage import Stage, parameters
from bench.memory_model.rows import Row, Shape, Unusable, shape_of
from partrain.cost.estimate import Moment, Term
from partrain.cost.laws import ALWAYS, Law, Wrapper, law_of
from partrain.cost.laws import Row as LawRow
from partrain.cost.quantities import Buckets, quantities
from partrain.cost.stage import Layers as Tapes
from partrain.cost.stage import StageWork, moments
from partrain.model.tape import INPUT, Op, Tape

WORKSPACES = 2 * 32 * 2**20
"""cuBLAS, of the forward and of autograd's thread; Hopper."""


def encoder_block(shape: Shape, *, autocast: bool) -> Tape:
    """Norms after the sub-layers, torch.nn.MultiheadAttention that is asked for its weights, as
    training/bf16_master_weight/train.py of DeepSpeedExamples has them.

    Under autocast norms and softmax are in fp32, what they make is cast again for the next matrix.
    """
    each, full = shape.each, 4 if autocast else shape.each
    one, high = shape.tokens * shape.hidden * each, shape.tokens * shape.hidden * full
    scores = shape.tokens * shape.heads * shape.sequence
    matrix = shape.hidden**2 * each
    cast = one if autocast else 0
    copied = one if shape.sequences > 1 and not autocast else 0
    read = () if copied or autocast else (INPUT,)
    mixed = ("weights", "qkv")
    ops = [
        Op("packed projection", (INPUT,), "packed", 3 * one, keeps=read, extra=copied + cast,
           weight=3 * matrix),
        Op("split", ("packed",), "qkv", 3 * one),
        Op("scale", ("qkv",), "q", one),
        Op("scores", ("q", "qkv"), "scores", scores * each, keeps=("q", "qkv"), backward_work=3 * one),
        Op("softmax", ("scores",), "weights", scores * full, keeps=("weights",)),
        Op("mix", mixed, "mixed", one, keeps=("qkv",) if autocast else mixed,
           extra=scores * each if autocast else 0),
        Op("join", ("mixed",), "joined", one),
        Op("projection", ("joined",), "attended", one, keeps=("joined",), weight=matrix),
        Op("residual", (INPUT, "attended"), "sum", high, passes=(INPUT, "attended")),
        Op("norm", ("sum",), "normed", high, keeps=("sum",), extra=8 * shape.tokens),
        Op("up", ("normed",), "inner", 4 * one, keeps=() if autocast else ("normed",), extra=cast,
           weight=4 * matrix),
        Op("gelu", ("inner",), "activated", 4 * one, keeps=("inner",)),
        Op("down", ("activated",), "out", one, keeps=("activated",), weight=4 * matrix),
        Op("residual again", ("normed", "out"), "sum again", high, passes=("normed", "out")),
        Op("norm again", ("sum again",), "y", high, keeps=("sum again",), extra=8 * shape.tokens),
    ]  # fmt: skip
    return Tape("block", tuple(ops), high, held=("normed",), recompute=shape.recompute == "full")


def encoder_tapes(shape: Shape, *, autocast: bool) -> Tapes:
    """The whole model and torch's cross-entropy over all its logits."""
    each, full = shape.each, 4 if autocast else shape.each
    one, logits = shape.tokens * shape.hidden * each, shape.tokens * shape.vocab
    block = encoder_block(shape, autocast=autocast)
    table = shape.vocab * shape.hidden * each
    embedding = Op(
        "look-up", (INPUT,), "embedded", block.input_size, keeps=(INPUT,), constant=(INPUT,), weight=table
    )
    cast = one if autocast else 0
    matrix = Op("logits", (INPUT,), "logits", logits * each, keeps=() if autocast else (INPUT,), extra=cast,
                weight=table)  # fmt: skip
    # under autocast it reads 16 bits and makes fp32; its gradient is in 16 bits again
    softmax = Op("log softmax", ("logits",), "shares", logits * full, keeps=("shares",))
    loss = Op("loss", ("shares",), "loss", 4)
    head = Tape("head", (matrix, softmax, loss), block.input_size)
    return (
        (Tape("embedding", (embedding,), shape.tokens * 8), 1),
        (block, shape.layers),
        (head, 1),
    )


def encoder_weights(shape: Shape) -> list[int]:
    """Elements of each weight."""
    h = shape.hidden
    block = [3 * h * h, 3 * h, h * h, h, h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h]
    return [shape.vocab * h, shape.sequence * h, *block * shape.layers, shape.vocab * h, shape.vocab]


def encoder_work(row: Row) -> StageWork:
    """A rank of that script. Its model is built before DeepSpeed's own linear layer is in place, so autograd
    keeps what is gathered until backward (deepspeedai/DeepSpeed pull request 8189)."""
    shape, autocast = shape_of(row), row["precision"] == "mixed-autocast"
    states = row.count("optimizer_bytes")
    low = autocast or states < 12
    wrapper = Wrapper(zero=3, precision="bf16", grad_accum="bf16", pipeline=False, offload="none",
                      states=4 if low else 8, master=2 if low else 4)  # fmt: skip
    weights = encoder_weights(shape)
    found = quantities(
        [weights], dp=shape.dp, buckets=Buckets(reduce=row.count("reduce_bucket"), persistence=0)
    )
    if shape.dp > 1 and shape.recompute == "none":
        linear = 12 * shape.hidden**2 * shape.layers + shape.vocab * shape.hidden
        found |= {"gathered": max(found["gathered"], linear), "gathering": 0}
    logits = shape.tokens * shape.vocab * shape.each
    return StageWork(
        layers=encoder_tapes(shape, autocast=autocast),
        law=law_of(wrapper),
        quantities=found,
        fill=1,
        num_micro_batches=1,
        always=(Term("workspaces of matrix products", WORKSPACES, "2 x 32 MiB"),),
        lingering=(Term("logits that the script refers to", logits, "2 bytes a logit"),),
    )


def _law_of_2021() -> Law:
    """No gradient partition and no bucket outside of backward; gradients in fp16."""
    walk = frozenset(("first forward", "first backward", "forward", "backward"))
    backward = frozenset(("first backward", "backward", "accumulation"))
    step = frozenset(("accumulation", "reduction", "norm", "step"))
    return Law(
        name="DeepSpeed 0.4, ZeRO 3",
        rows=(
            LawRow(
                "parameters, master weights and states of this rank's share",
                14,
                "sharded",
                ALWAYS,
                shared=True,
            ),
            LawRow(
                "gradients of this rank's share",
                2,
                "sharded",
                step | {"backward", "first backward"},
                shared=True,
            ),
            LawRow("gathered weights", 2, "gathered", walk),
            LawRow("weights on their way", 2, "gathering", walk),
            LawRow("reduction bucket, two with overlap", 4, "bucket", backward),
            LawRow(
                "gradients of this rank's share in fp32", 4, "sub group", frozenset(("step",)), shared=True
            ),
        ),
        gradients_stay=False,
        source="deepspeed 0.4 runtime/zero/stage3.py",
    )


def megatron_work(row: Row) -> StageWork:
    """Megatron-LM's layers under ZeRO 3, checkpoints in host memory where the row says so."""
    shape = shape_of(row)
    if shape.pp > 1:
        raise Unusable("ZeRO 3 has no pipeline")
    layers = Layers(shape, LOCAL)
    common, _ = parameters(layers, Stage(0, shape.layers, True, True), shape.layers)
    block, table = 12 * shape.hidden**2 // shape.tp, shape.vocab // shape.tp * shape.hidden
    weights = [table, *([block // 3, block // 3, block // 4, block // 12] * shape.layers)]
    weights.append(max(common - sum(weights), 0))
    buckets = Buckets(reduce=row.count("reduce_bucket", 500_000_000), sub_group=10**12)
    found = quantities([weights], dp=shape.dp, buckets=buckets)
    # what is fetched ahead of its use runs on until so many parameters are live (stage3_max_live_parameters)
    found |= {"gathered": min(common, 10**9), "gathering": max(weights)}
    away = row["checkpoint_place"] == "cpu"
    kept = shape.layers * layers.narrow if away and shape.recompute == "full" else 0
    return StageWork(
        layers=((layers.embedding(), 1), (layers.block(), shape.layers), (layers.head(), 1)),
        law=_law_of_2021(),
        quantities=found,
        fill=1,
        num_micro_batches=shape.micro_batches,
        each=(Term("checkpoints in host memory", -kept, "layers x 2Nh"),) if kept else (),
    )


def decoder_block(shape: Shape) -> Tape:
    """Hugging Face's Llama and Qwen: norms of single operators in fp32, torch's attention, an MLP of four."""
    each, one = shape.each, shape.tokens * shape.hidden * shape.each
    query = shape.tokens * shape.heads * shape.head_dim * each
    key = shape.tokens * shape.kv_heads * shape.head_dim * each
    inner = shape.tokens * shape.mlp * each
    widths = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weight = [shape.hidden * width * each for width in (*widths, shape.mlp)]

    def norm(name: str, reads: str, makes: str) -> Op:
        elements = shape.tokens * shape.hidden
        return Op(name, (reads,), makes, one, extra=elements * (4 + each) + 4 * shape.tokens,
                  forward_work=elements * 4, backward_work=elements * 12)  # fmt: skip

    ops = [
        norm("norm", INPUT, "normed"),
        Op("query", ("normed",), "q", query, keeps=("normed",), weight=weight[0]),
        Op("key", ("normed",), "k", key, keeps=("normed",), weight=weight[1]),
        Op("value", ("normed",), "v", key, keeps=("normed",), weight=weight[1]),
        Op("rotary q", ("q",), "q turned", query, forward_work=3 * query, backward_work=query * 5 // 2),
        Op("rotary k", ("k",), "k turned", key, forward_work=3 * key, backward_work=key * 5 // 2),
        Op("attention", ("q turned", "k turned", "v"), "attended", query,
           keeps=("q turned", "k turned", "v", "attended"), extra=4 * shape.tokens * shape.heads,
           backward_work=2 * query),
        Op("projection", ("attended",), "projected", one, keeps=("attended",), weight=weight[0]),
        Op("residual", (INPUT, "projected"), "between", one, passes=(INPUT, "projected")),
        norm("norm again", "between", "normed again"),
        Op("gate", ("normed again",), "gate", inner, keeps=("normed again",), weight=weight[2]),
        Op("silu", ("gate",), "activated", inner, keeps=("gate",)),
        Op("up", ("normed again",), "up", inner, keeps=("normed again",), weight=weight[2]),
        Op("product", ("activated", "up"), "gated", inner, keeps=("activated", "up")),
        Op("down", ("gated",), "down", one, keeps=("gated",), weight=weight[2]),
        Op("residual again", ("between", "down"), "y", one, passes=("between", "down")),
    ]  # fmt: skip
    return Tape("block", tuple(ops), one, held=("normed again",), recompute=shape.recompute == "full")


def decoder_tapes(shape: Shape) -> Tapes:
    """With a loss that makes fp32 logits, their log-softmax and its gradient."""
    block = decoder_block(shape)
    logits, table = shape.tokens * shape.vocab, shape.vocab * shape.hidden * shape.each
    embedding = Op(
        "look-up", (INPUT,), "embedded", block.input_size, keeps=(INPUT,), constant=(INPUT,), weight=table
    )
    head = (
        Op("final norm", (INPUT,), "normed", block.input_size, extra=block.input_size * 3),
        Op("logits", ("normed",), "logits", logits * shape.each, keeps=("normed",), weight=table),
        Op("cast", ("logits",), "wide", logits * 4),
        Op("log softmax", ("wide",), "shares", logits * 4, keeps=("shares",)),
        Op("loss", ("shares",), "loss", 4),
    )
    return (
        (Tape("embedding", (embedding,), shape.tokens * 8), 1),
        (block, shape.layers),
        (Tape("head", head, block.input_size, held=("logits", "wide")), 1),
    )


def decoder_work(row: Row) -> StageWork:
    """A rank of Hugging Face's trainer with ZeRO 3."""
    shape = shape_of(row)
    if row["mlp"] not in ("swiglu", "geglu"):
        raise Unusable("Hugging Face's tape is for gated decoders")
    if row["zero_stage"] != "3":
        raise Unusable("only ZeRO 3 has a tape with Hugging Face's decoders")
    h, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = [h * query, h * key, h * key, query * h, *([h * shape.mlp] * 3), h, h]
    weights = [shape.vocab * h, *block * shape.layers, h, *([] if shape.tied else [shape.vocab * h])]
    accumulate = {"fp32": "fp32", "fp16": "fp16"}.get(row["grad_dtype_std"], "bf16")
    offload = row["offload"] or "none"
    wrapper = Wrapper(zero=3, precision="bf16", grad_accum=accumulate, pipeline=False, offload=offload,
                      states=max(row.count("optimizer_bytes", 12) - 4, 0))  # fmt: skip
    buckets = Buckets(reduce=row.count("reduce_bucket", shape.hidden**2), prefetch=int(0.9 * shape.hidden**2),
                      persistence=10 * shape.hidden)  # fmt: skip
    return StageWork(
        layers=decoder_tapes(shape),
        law=law_of(wrapper),
        quantities=quantities([weights], dp=shape.dp, buckets=buckets),
        fill=1,
        num_micro_batches=shape.micro_batches,
        always=(Term("workspaces of matrix products", WORKSPACES, "2 x 32 MiB"),),
    )


def predict(row: Row) -> tuple[Moment, ...]:
    """Every moment of the rank."""
    if row["profile"] == "deepspeed-0.19":
        return moments(encoder_work(row))
    if row["profile"] == "deepspeed-hf-zero3":
        return moments(decoder_work(row))
    if row["zero_stage"] != "3" or row["precision"] != "fp16":
        raise Unusable("its layers and its ZeRO stage have no tapes")
    return moments(megatron_work(row))
