"""The whole decoder as one module, for the engine without a pipeline that ZeRO 2 and 3 need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import deepspeed
import torch.distributed as dist
from torch import Tensor, nn

from partrain.engine.execution import Execution
from partrain.engine.groups import Grid
from partrain.engine.loss import Loss
from partrain.engine.pipeline import Materialise, Part, decoder_parts, loss_of
from partrain.engine.tensor_parallel import Region
from partrain.plan.plan import Plan


class Row(nn.Module):
    """All parts one after another, and the loss."""

    def __init__(self, parts: tuple[Part, ...], *, loss: Loss, materialise: Materialise) -> None:
        super().__init__()
        self.parts = nn.ModuleList(built_parts(parts, materialise))
        self.loss_fn = loss

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        x: Any = tokens_BT
        for part in self.parts:
            x = part(x)
        return self.loss_fn(x, labels_BT)


class _Shared(nn.Module):
    """A second use of another part's weight, which it has too: ZeRO 3 gathers what a module has."""

    def __init__(self, owner: Any, use: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.region, self.use = owner.weight, owner.region, use

    def forward(self, x: Tensor) -> Any:
        return self.use(self, x)


def built_parts(parts: tuple[Part, ...], materialise: Materialise) -> Iterator[nn.Module]:
    """The parts, each given its values before the next is built."""
    owners: dict[str, nn.Module] = {}
    for part in parts:
        if part.forward is not None:
            yield _Shared(owners[part.tied], part.forward)
            continue
        module = part.build()
        materialise(module)
        owners[part.tied] = module
        yield module


def row_module(
    plan: Plan, *, region: Region, execution: Execution, grid: Grid, materialise: Materialise
) -> Row:
    """The decoder with its first values; under ZeRO 3 each replica keeps its share of a part before the
    next part is made. Collective over the world."""
    layout = plan.layout
    parts = decoder_parts(plan.model, region, layout.recompute, execution)

    def shared_out(module: nn.Module) -> None:
        materialise(module)
        deepspeed.zero.Init(
            module=module,
            data_parallel_group=grid.get_data_parallel_group(),
            config_dict_or_path=dict(plan.deepspeed),
            mpu=grid,
        )

    values = shared_out if layout.zero == 3 else materialise
    return Row(parts, loss=loss_of(plan, region.group), materialise=values)


def number_held(parameter: nn.Parameter) -> int:
    """Elements of `parameter`, however many of them are elsewhere."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def mean_loss(engine: Any, micro_batches: Iterator[tuple[Tensor, Tensor]]) -> float:
    """One optimizer step; the mean loss over micro-batches and replicas."""
    losses = []
    for tokens_BT, labels_BT in micro_batches:
        loss = engine(tokens_BT, labels_BT)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    mean = sum(losses) / len(losses)
    dist.all_reduce(mean, group=engine.mpu.get_data_parallel_group())
    return float(mean) / engine.mpu.get_data_parallel_world_size()
