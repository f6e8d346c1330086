"""Plan -> a DeepSpeed engine with this rank's share of the model."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__

from partrain.engine.dropout import Samples
from partrain.engine.execution import Execution, choose_arithmetic
from partrain.engine.groups import Grid, tensor_group, topology
from partrain.engine.initial import materialise
from partrain.engine.loss_scale import change_scale_after_steps
from partrain.engine.optimizer import Clipping, build_optimizer, parameter_groups
from partrain.engine.pipeline import pipeline_module
from partrain.engine.row import number_held, row_module
from partrain.engine.tensor_parallel import Region
from partrain.errors import RunError
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def join_world(device: str) -> None:
    """Meet the other ranks, as the environment names them."""
    # DeepSpeed would compile a shared-memory op at start, with all ranks waiting for it.
    __compatible_ops__["deepspeed_shm_comm"] = False
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend=BACKENDS[device], auto_mpi_discovery=False, verbose=False)


def build_engine(plan: Plan, *, rank: int, device: torch.device) -> Any:
    """The engine of `rank`. Collective over the world.

    Raises RunError when this rank's parameters are not those of the plan.
    """
    group = tensor_group(plan.layout, rank)
    values = partial(
        materialise,
        group=group,
        seed=plan.training.seed,
        device=device,
        dtype=DTYPES[plan.training.precision],
    )
    region = Region(group, plan.layout.sequence_parallel)
    samples = Samples(plan.training, plan.layout, coordinate_of(rank, plan.layout).dp, region)
    execution = Execution(plan.training.attention, plan.training.compile, samples)
    choose_arithmetic(tf32=plan.training.tf32)
    grid = Grid(topology(plan.layout)) if plan.layout.zero > 1 else None
    module: Any
    if grid is None:
        module = pipeline_module(plan, region=region, execution=execution, materialise=values)
    else:
        module = row_module(plan, region=region, execution=execution, grid=grid, materialise=values)
    check_parameters(plan, rank, sum(number_held(p) for p in module.parameters()))
    groups = parameter_groups(module.parameters(), plan.training.optimizer.weight_decay)
    replicas = (grid or module.mpu()).get_data_parallel_group()
    optimizer = build_optimizer(plan, groups, group=group, replicas=replicas)
    if not plan.layout.zero:
        Clipping(plan.training.optimizer.grad_clip, group).before_steps_of(optimizer)
    samples.follow(module)
    config = dict(plan.deepspeed)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, mpu=grid, config=config)
    if plan.training.precision == "bf16" and plan.layout.zero == 2:
        engine.optimizer.check_overflow = _left_to_the_norm
    change_scale_after_steps(engine)
    engine.samples = samples
    return engine


def _left_to_the_norm(partition_gradients: bool = True) -> None:
    """In place of a look at every gradient, with copies of it in fp32: the norm, which comes next, says too
    whether all are finite, and leaves the update out."""


def check_parameters(plan: Plan, rank: int, found: int) -> None:
    """Raise RunError when `rank` holds another number of parameters than the plan says."""
    stage = plan.stages[coordinate_of(rank, plan.layout).pp]
    if found != stage.parameters:
        raise RunError(
            f"rank {rank} (stage {stage.stage}) holds {found} parameters, the plan says {stage.parameters}",
            hint="the plan was made by another version of partrain: plan again",
        )
