"""DeepSpeed 0.4 under Megatron-LM of 2021 (bigscience): its pipeline engine with ZeRO 0 and 1, and ZeRO 3.

Facts from deepspeed 0.4 (runtime/pipe/engine.py, runtime/fp16/unfused_optimizer.py, runtime/zero/stage2.py,
stage3.py) and the published logs. Torch of that time takes cuBLAS' workspace outside of its allocator.
"""

from __future__ import annotations

from bench.memory_model.megatron import Kernels, Layers
from bench.memory_model.megatron_stage import Stage, parameters, stage_of
from bench.memory_model.rows import Row, Shape, Unusable, shape_of
from partrain.cost.estimate import Moment, Term
from partrain.cost.laws import ALWAYS, TO_STEP, Law
from partrain.cost.laws import Row as LawRow
from partrain.cost.stage import StageWork, moments
from partrain.model.tape import Tape

LOCAL = Kernels(fused_norm=False, scripted=True, fused_loss="none", fuses_gradients=False)


def _bf16_law() -> Law:
    """BF16_Optimizer of 2022, which ZeRO 0 and 1 have alike under the pipeline engine."""
    return Law(
        name="BF16_Optimizer",
        rows=(
            LawRow("parameters", 2, "rank", ALWAYS),
            LawRow("gradients, kept and set to zero", 2, "rank", ALWAYS),
            LawRow("gradients in fp32", 4, "rank", ALWAYS),
            LawRow("master weights and states", 12, "share", ALWAYS, shared=True),
        ),
        gradients_stay=False,
        source="deepspeed 0.6 runtime/bf16_optimizer.py",
    )


def _law(zero: int) -> Law:
    """ZeRO 0: the unfused fp16 wrapper, whose fp32 gradients exist next to the fp16 ones during the step.
    ZeRO 1: the same over this rank's share, whose fp16 gradients are flattened first."""
    shared = zero > 0
    quantity = "share" if shared else "rank"
    step = frozenset(("step",))
    rows = (
        LawRow("parameters", 2, "rank", ALWAYS),
        LawRow("gradients", 2, "rank", TO_STEP),
        LawRow("master weights and states", 12, quantity, ALWAYS, shared=shared),
        LawRow("gradients in fp32", 4, quantity, step, shared=shared),
        *((LawRow("gradients, flat", 2, "share", step, shared=True),) if shared else ()),
        LawRow("gradients, flattened to be reduced", 2, "flattened", frozenset(("reduction",))),
    )
    return Law(name=f"DeepSpeed 0.4, ZeRO {zero}", rows=rows, gradients_stay=True, source=__doc__ or "")


def pipeline_work(row: Row) -> StageWork:
    """A rank of the pipeline engine."""
    shape = shape_of(row)
    stage = stage_of(row, shape)
    layers = Layers(shape, LOCAL)
    common, _ = parameters(layers, stage, stage.blocks)
    if stage.is_last and shape.tied and not stage.is_first:
        common += (
            shape.sequence * shape.hidden if shape.learned else 0
        )  # the tied module has the positions too
    tapes: list[tuple[Tape, int]] = [(layers.embedding(), 1)] if stage.is_first else []
    tapes.append((layers.block(), stage.blocks))
    if stage.is_last:
        tapes.append((layers.head(), 1))
    narrow = layers.narrow
    sent = narrow // shape.tp
    each = () if stage.is_last else (Term("output that waits for its gradient, a share", sent, "2Nh / t"),)
    return StageWork(
        layers=tuple(tapes),
        law=_bf16_law() if row["precision"] == "bf16" else _law(row.count("zero_stage", 0)),
        quantities={
            "rank": common,
            "share": common // shape.dp,
            "flattened": min(common, 500_000_000) if shape.dp > 1 else 0,
        },
        fill=min(shape.pp - stage.index, shape.micro_batches),
        num_micro_batches=shape.micro_batches,
        always=_buffers(shape, narrow, sent),
        each=each,
        lingering=_outputs(shape, stage, narrow),
    )


def _buffers(shape: Shape, narrow: int, sent: int) -> tuple[Term, ...]:
    mask = shape.sequence**2 * 2
    if shape.pp == 1:
        return (Term("mask", mask, "s x s"),)
    return (
        Term("last activation received, whole", narrow, "2Nh"),
        Term("receive buffer, a share", sent, "2Nh / t"),
        Term("mask", mask, "s x s, sent as fp16"),
    )


def _outputs(shape: Shape, stage: Stage, narrow: int) -> tuple[Term, ...]:
    """The last stage's output buffers are never cleared: two logits in fp32, and hidden states with them."""
    if not stage.is_last:
        return ()
    slots = min(2, shape.micro_batches)
    logits = shape.tokens * shape.vocab // shape.tp * 4
    return (
        Term("logits that are never cleared", slots * logits, f"{slots} x 4 bytes a logit"),
        Term("hidden states with them", (slots + 1) * narrow, f"{slots + 1} x 2Nh"),
    )


def predict(row: Row) -> tuple[Moment, ...]:
    """Every moment of the rank."""
    if row["zero_stage"] in ("2", "3"):
        raise Unusable("the pipeline engine has no ZeRO 2 or 3")
    return moments(pipeline_work(row))
