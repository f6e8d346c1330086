"""Runs plans in one world of processes: `python -m tests.engine.world PLANS.json RESULTS.jsonl`, a rank each.

Engine after engine is built in the same process group, since starting processes is what takes long.
"""

from __future__ import annotations

import json
import os
import sys
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator

from partrain.data.sources import open_sources
from partrain.engine.build import build_engine, join_world
from partrain.engine.evaluation import evaluation_of
from partrain.engine.train import batches, set_batch_size, train_step
from partrain.layout.ranks import coordinate_of
from partrain.plan.batch_ramp import phase_at
from partrain.plan.learning_rate import learning_rate
from partrain.plan.plan import Plan
from tests.engine import sabotage

CPU = torch.device("cpu")
LINEAR = F.linear


def run(plan: Plan, steps: int) -> dict[str, Any]:
    """(loss, gradient norm) of each step, up to one that ends the run, and the losses of the evaluations
    that the first two are due."""
    rank, wish = int(os.environ["RANK"]), plan.training
    sources = open_sources(plan)
    evaluation = evaluation_of(plan, sources, rank=rank, device=CPU)
    # torch computes in fp16 on any CPU; DeepSpeed asks whether the CPU has instructions for it.
    get_accelerator().is_fp16_supported = lambda: plan.training.precision == "fp16"
    engine = build_engine(plan, rank=rank, device=CPU)
    result, evaluated = [], []
    scaler = Scaler(plan) if plan.training.precision == "fp16" else None
    for step in range(1, steps + 1):
        lr = learning_rate(step, steps=wish.steps, optimizer=wish.optimizer, schedule=wish.schedule)
        replica = coordinate_of(rank, plan.layout).dp
        set_batch_size(engine, phase_at(step, wish, plan.layout).batch)
        micro_batches = batches(sources.train, plan, step=step, replica=replica, device=CPU)
        engine.samples.begin(step)
        done = train_step(engine, micro_batches, lr=lr)
        result.append((done.loss, done.grad_norm))
        if scaler:
            scaler.check(done.loss_scale, skipped=not engine.was_step_applied())
        if not done.is_finite and not done.skipped:
            break
        if evaluation is not None and step <= 2 and evaluation.wish.is_due(step, steps=wish.steps):
            evaluated.append(evaluation.measure(engine)[0])
    if plan.layout.zero == 3:
        check_shares(engine, plan)
    engine.destroy()
    # Building a ZeRO 3 engine replaces this function for the whole process and leaves it so.
    F.linear = LINEAR
    return {"steps": result, "evaluated": evaluated}


class Scaler:
    """Dynamic loss scaling once more (Micikevicius et al. 2018, section 3.2), to hold DeepSpeed's to."""

    def __init__(self, plan: Plan) -> None:
        wish = plan.deepspeed["fp16"]
        self.scale = wish["loss_scale"] or 2.0 ** wish["initial_scale_power"]
        self.window = inf if wish["loss_scale"] else wish["loss_scale_window"]
        self.tolerated, self.good = wish["hysteresis"] - 1, 0

    def check(self, scale: float | None, *, skipped: bool) -> None:
        """A step was made with `scale`, as it should be, and was skipped on all ranks or on none."""
        assert scale == self.scale
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, (scale, skipped))
        assert set(everywhere) == {(scale, skipped)}
        self.good = 0 if skipped else self.good + 1
        if skipped and not self.tolerated:
            self.scale /= 2
        elif skipped:
            self.tolerated -= 1
        elif self.good > 1 and (self.good - 1) % self.window == 0:  # DeepSpeed counts from the second on
            self.scale, self.tolerated = self.scale * 2, 1


def check_shares(engine: Any, plan: Plan) -> None:
    """Under ZeRO 3 a rank holds its share of every weight, and between steps nothing large is whole."""
    largest = plan.deepspeed["zero_optimization"]["stage3_param_persistence_threshold"]
    parameters = list(engine.module.parameters())
    for parameter in parameters:
        assert parameter.ds_tensor.ds_numel == -(-parameter.ds_numel // plan.layout.dp)
        assert parameter.numel() <= largest, parameter.entry.name
    assert any(parameter.ds_numel > largest for parameter in parameters)


def main(plans: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    with open(results, "w", encoding="utf-8") if os.environ["RANK"] == "0" else open(os.devnull, "w") as file:
        for case in json.loads(plans.read_text()):
            with sabotage.applied(case["sabotage"]):
                found = run(Plan.from_json(case["plan"]), case["steps"])
            file.write(json.dumps(found) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)
