"""The plan's layers and stage bounds -> DeepSpeed's PipelineModule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from partrain.engine.dropout import EmbeddingDropout
from partrain.engine.execution import PLAIN, Execution
from partrain.engine.groups import TensorGroup, topology
from partrain.engine.loss import HeadOutput, Loss
from partrain.engine.modules import (
    Block,
    Embedding,
    Head,
    Norm,
    Positions,
    tied_head,
    weight_table,
)
from partrain.engine.tensor_parallel import Region
from partrain.model.decoder import HEAD
from partrain.plan.plan import Plan
from partrain.spec.model import ModelSpec

Build = Callable[[], nn.Module]
Materialise = Callable[[nn.Module], None]
"""Gives the weights of a module that was built on the meta device their first values."""


@dataclass(frozen=True)
class Part:
    """One of DeepSpeed's layers: which pipeline layer it belongs to, and how it is made."""

    layer: int
    build: Build
    tied: str = ""
    """Key of the module that several parts share; empty: none."""
    forward: Callable[[Any, Tensor], HeadOutput] | None = None
    """What a tied part does with the shared module; None: its own forward."""


def decoder_parts(
    model: ModelSpec, region: Region, recompute: str, execution: Execution = PLAIN
) -> tuple[Part, ...]:
    """The decoder in pipeline order; layers that have several steps become several parts."""
    table, last = weight_table(model), model.num_layers + 1
    tied = "embedding" if model.tie_embeddings else ""
    parts = [Part(0, lambda: Embedding(model, table, region), tied=tied)]
    if model.position == "learned":
        parts.append(Part(0, lambda: Positions(table, region)))
    samples = execution.samples
    if samples is not None and model.dropout:
        parts.append(Part(0, lambda: EmbeddingDropout(samples, model.dropout)))
    built = partial(Block, model, table, region=region, recompute=recompute, execution=execution)
    parts += [Part(block + 1, partial(built, block)) for block in range(model.num_layers)]
    parts.append(Part(last, lambda: Norm(model, table, "final_norm", region)))
    if tied:
        return (*parts, Part(last, lambda: Embedding(model, table, region), tied=tied, forward=tied_head))
    return (*parts, Part(last, lambda: Head(table, region)))


class _Spec(LayerSpec):
    """A layer that is built, with its first values, only on the stage that holds it."""

    def __init__(self, build: Build) -> None:
        super().__init__(nn.Module)
        self.make = build

    def build(self, log: bool = False) -> nn.Module:
        return self.make()


class _TiedSpec(TiedLayerSpec):
    """The same, for a module that several layers share; the last stage's copy comes from its own part."""

    def __init__(self, part: Part, build: Build) -> None:
        super().__init__(part.tied, nn.Module, forward_fn=part.forward, tied_weight_attr=["weight"])
        self.make = build

    def build(self, log: bool = False) -> nn.Module:
        return self.make()


class _Stages(PipelineModule):
    """A PipelineModule cut at the plan's own bounds: DeepSpeed's methods neither know the head's cost nor
    keep every stage from being empty."""

    def __init__(self, bounds: tuple[int, ...], **arguments: Any) -> None:
        object.__setattr__(self, "_bounds", bounds)
        super().__init__(**arguments)

    def _partition_layers(self, method: str = "uniform") -> None:
        self.parts = list(self._bounds)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def get_tied_weights_and_groups(self) -> list[tuple[Any, Any]]:
        """Tied weights, whose `grad` is summed over the stages: that of ZeRO's sum over micro-batches where
        it keeps one (fp16), since the weight itself has none left."""
        return [
            (
                weight
                if getattr(weight, "grad_accum", None) is None
                else SimpleNamespace(grad=weight.grad_accum),
                group,
            )
            for weight, group in super().get_tied_weights_and_groups()
        ]


def part_bounds(parts: tuple[Part, ...], stage_bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Bounds over parts from bounds over layers."""
    return tuple(sum(part.layer < bound for part in parts) for bound in stage_bounds)


def pipeline_module(
    plan: Plan, *, region: Region, execution: Execution, materialise: Materialise
) -> PipelineModule:
    """This rank's stage with its first values, and the loss. Collective over the world."""
    layout = plan.layout
    parts = decoder_parts(plan.model, region, layout.recompute, execution)

    def with_values(build: Build) -> Build:
        def made() -> nn.Module:
            module = build()
            materialise(module)
            return module

        return made

    specs = [
        _TiedSpec(part, with_values(part.build)) if part.tied else _Spec(with_values(part.build))
        for part in parts
    ]
    bounds = part_bounds(parts, layout.stage_bounds)
    return _Stages(bounds, layers=specs, topology=topology(layout), loss_fn=loss_of(plan, region.group))


def loss_of(plan: Plan, group: TensorGroup) -> Loss:
    """The loss that the plan trains with."""
    wish = plan.training
    return Loss(
        weight_table(plan.model)[HEAD],
        group,
        chunk_size=None if wish.loss_chunk_size == "none" else wish.loss_chunk_size,
        label_smoothing=wish.label_smoothing,
        z_loss=wish.z_loss,
    )
