"""Galvatron's profiled layers: peak of forward and backward above states that are measured too.

States and what the forward pass leaves held stand in the row; what is estimated is how far the backward pass
goes beyond. Facts from galvatron/core/runtime (fully sharded data parallelism from torch: a unit's weights
and gradients are whole while it works) and Megatron-LM's layers.
"""

from __future__ import annotations

from dataclasses import replace

from bench.memory_model.megatron import Kernels, Layers
from bench.memory_model.megatron_stage import block_parameters
from bench.memory_model.rows import Row, shape_of
from partrain.cost.estimate import Moment, Term
from partrain.cost.walk import walk

MIB = 2**20
KERNELS = Kernels(fused_norm=False, scripted=False, fused_loss="none", fuses_gradients=False)


def predict(row: Row) -> tuple[Moment, ...]:
    """The one moment that is measured; raises Unusable where states or held bytes are not stated."""
    shape = shape_of(row)
    if shape.pp > 1:
        shape = replace(shape, sequences=1)  # the profiler cuts a pipeline's batch into single sequences
    layers = Layers(shape, KERNELS)
    given = (
        Term("states", round(row.number("states_mib") * MIB), "as measured"),
        Term("held after the forward pass", round(row.number("held_mib") * MIB), "as measured"),
    )
    walked, sharded = walk(layers.block()), shape.dp > 1 and shape.pp == 1
    unit = block_parameters(layers, dense=True)[0] * shape.each if sharded else 0
    peak = walked.growing if sharded else walked.backward
    kept = layers.narrow if shape.recompute == "full" else walked.held
    block = (
        Term("the layer again and its gradients", max(peak.bytes - kept, 0), peak.operator),
        Term("the layer's weights, whole", unit, "12 h^2 and biases"),
    )
    moments = [Moment("backward", (*given, *block), f"block: {peak.operator}")]
    if sharded:
        shares = Term("weights, gradients and their flat copy to be scattered", 3 * unit, "3 x the layer")
        own = Term("this rank's share of them", unit // shape.dp, "1 / dp")
        moments.append(Moment("reduction", (*given, shares, own)))
    if shape.pp == 1:
        logits = shape.tokens * shape.vocab // shape.tp
        table = shape.vocab // shape.tp * shape.hidden * shape.each if sharded else 0
        loss = Term("gradients of logits", 6 * logits, "4 bytes a logit in fp32 and 2 in 16 bits")
        moments.append(
            Moment("backward", (*given, loss, Term("the head's matrix, whole", table, "V h")), "head: loss")
        )
    return tuple(moments)
