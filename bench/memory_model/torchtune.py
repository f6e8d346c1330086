"""torchtune on one device: 16-bit weights, gradients and AdamW's states, and its decoder's operators."""

from __future__ import annotations

from dataclasses import replace

from bench.memory_model.rows import Row, Shape, Unusable, shape_of
from bench.memory_model.zero3 import decoder_block
from partrain.cost.estimate import Moment, Term
from partrain.cost.laws import ALWAYS, TO_STEP, Law
from partrain.cost.laws import Row as LawRow
from partrain.cost.stage import StageWork, moments
from partrain.model.tape import INPUT, Op, Tape


def tune_block(shape: Shape, *, compiled: bool) -> Tape:
    """torchtune's decoder: keys and values of every query head and, with packed data, a mask for each call.

    Compiled, norms and the gated product keep their inputs alone, and the mask is a function.
    """
    tape = decoder_block(replace(shape, kv_heads=shape.heads) if not compiled else shape)
    mask = 0 if compiled else shape.sequences * shape.sequence**2 * shape.each
    ops = []
    for op in tape.ops:
        if op.name == "attention":
            op = replace(op, extra=op.extra + mask)
        if compiled and op.name.startswith("norm"):
            op = replace(op, keeps=op.reads, extra=4 * shape.tokens, forward_work=0, backward_work=0)
        if compiled and op.name == "product":
            op = replace(op, keeps=("up",))
        ops.append(op)
    return replace(tape, ops=tuple(ops))


def predict(row: Row) -> tuple[Moment, ...]:
    """Every moment of the device."""
    if "torchtune" not in row["source"] or row["zero_or_fsdp"] != "none (single device)":
        raise Unusable("its runtime has no profile")
    shape, compiled = (
        shape_of(row),
        "compile" in row["remarks"] or row.flag("fused_ce") or row["recompute_std"] == "full",
    )
    h, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = h * (2 * query + 2 * key) + 3 * h * shape.mlp + 2 * h
    numel = block * shape.layers + shape.vocab * h * (1 if shape.tied else 2) + h
    law = Law(
        name="AdamW in 16 bits",
        rows=(
            LawRow("parameters", 2, "rank", ALWAYS),
            LawRow("gradients", 2, "rank", TO_STEP),
            LawRow("optimizer states", row.count("optimizer_bytes"), "rank", ALWAYS),
        ),
        gradients_stay=True,
        source="torchtune recipes/full_finetune_single_device.py",
    )
    logits, table = shape.tokens * shape.vocab, shape.vocab * h * shape.each
    size = shape.tokens * h * shape.each
    each = logits // 8 if shape.fused_loss else logits
    head = (
        Op("final norm", (INPUT,), "normed", size, keeps=(INPUT,)),
        Op("logits", ("normed",), "logits", logits * 2, keeps=("normed",), weight=table),
        Op("loss", ("logits",), "loss", 4, extra=4 * logits, forward_work=4 * each, backward_work=4 * each),
    )
    tapes = (
        (tune_block(shape, compiled=compiled), shape.layers),
        (Tape("head", head, size, held=("logits",)), 1),
    )
    work = StageWork(
        layers=tapes,
        law=law,
        quantities={"rank": numel},
        fill=1,
        num_micro_batches=1,
        always=(Term("workspaces of matrix products", 2 * 8_519_680, "two threads"),),
    )
    return moments(work)
