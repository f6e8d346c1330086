"""Saves under each of its layouts, then resumes each of everyone's checkpoints under each of them.

`python -m tests.engine.checkpoint_world WORK.json RESULTS.json`, a rank each. Worlds of other sizes run at
the same time and meet in the folder of the checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator

from partrain.checkpoint.shelf import checkpoint_name, read_checkpoint
from partrain.data.sources import open_sources
from partrain.engine.build import build_engine, join_world
from partrain.engine.fragments import fragments, inner_optimizer
from partrain.engine.restore import load
from partrain.engine.saving import Retention, Saver
from partrain.engine.train import batches, train_step
from partrain.layout.ranks import coordinate_of
from partrain.plan.learning_rate import learning_rate
from partrain.plan.plan import Plan
from tests.engine import checkpoint_policy, sabotage
from tests.engine.world import LINEAR

CPU = torch.device("cpu")
BEFORE, AFTER = 3, 10
"""Steps before the save, and after it."""
PATIENCE_S = 240.0

Losses = list[tuple[float, float]]


class Training:
    """One engine, and its steps."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rank = plan, int(os.environ["RANK"])
        self.source = open_sources(plan).train
        # torch computes in fp16 on any CPU; DeepSpeed asks whether the CPU has instructions for it.
        get_accelerator().is_fp16_supported = lambda: plan.training.precision == "fp16"
        self.engine = build_engine(plan, rank=self.rank, device=CPU)

    def steps(self, first: int, last: int, *, lr_ahead: int = 0) -> Losses:
        """(loss, gradient norm) of each step."""
        wish, replica, result = self.plan.training, coordinate_of(self.rank, self.plan.layout).dp, []
        for step in range(first, last + 1):
            lr = learning_rate(
                step + lr_ahead, steps=wish.steps, optimizer=wish.optimizer, schedule=wish.schedule
            )
            micro_batches = batches(self.source, self.plan, step=step, replica=replica, device=CPU)
            self.engine.samples.begin(step)
            found = train_step(self.engine, micro_batches, lr=lr)
            result.append((found.loss, found.grad_norm))
        return result

    def save(self, folder: Path) -> None:
        """Save after the step BEFORE, while the training goes on."""
        saver = Saver(
            self.engine, self.plan, folder, rank=self.rank, retention=Retention(1, None), job="version: 1\n"
        )
        saver.save(BEFORE)
        self.saver = saver

    def load(self, folder: Path) -> None:
        """Take the checkpoint of the step BEFORE, once it is there."""
        path, limit = folder / checkpoint_name(BEFORE), time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < limit, f"{path} does not come"
            time.sleep(0.05)
        load(self.engine, self.plan, self.rank, folder=path, manifest=read_checkpoint(path))

    def forget(self, state: str) -> None:
        """Lose a state of the optimizer, as a resume that leaves it out would."""
        at, optimizer = coordinate_of(self.rank, self.plan.layout), inner_optimizer(self.engine)
        for held in fragments(self.engine, tensor_rank=at.tp, tensor_size=self.plan.layout.tp):
            optimizer.state[held.holder][state].zero_()

    def end(self) -> None:
        self.engine.destroy()
        F.linear = LINEAR


def saved(work: dict[str, Any], folder: Path) -> dict[str, Losses]:
    """Name of each layout -> its losses after the save, as if nothing had been saved."""
    found = {}
    for name, text in work["plans"].items():
        training = Training(Plan.from_json(text))
        training.steps(1, BEFORE)
        training.save(folder / name)
        found[name] = training.steps(BEFORE + 1, BEFORE + AFTER)
        training.saver.wait()
        assert training.saver.failures == []
        dist.barrier()
        training.end()
    return found


def resumed(work: dict[str, Any], folder: Path) -> dict[str, Losses]:
    """`SOURCE -> TARGET` -> losses under the target from the source's checkpoint."""
    found = {}
    for name, text in work["plans"].items():
        training = Training(Plan.from_json(text))
        # Its own first: into an engine that has no states yet.
        for source in sorted(work["sources"][name], key=lambda other: other != name):
            if source != name and training.plan.training.precision == "fp16":
                training.end()  # or it would keep the loss scale of the source before
                training = Training(training.plan)
            training.load(folder / source)
            found[f"{source} -> {name}"] = training.steps(BEFORE + 1, BEFORE + AFTER)
        if name == work["control"]:
            found |= controls(training, folder / name)
        training.end()
    return found


def controls(training: Training, folder: Path) -> dict[str, Losses]:
    """What is lost -> losses without it."""
    found, last = {}, BEFORE + AFTER
    for state in ("step", "exp_avg", "exp_avg_sq"):
        training.load(folder)
        training.forget(state)
        found[f"without {state}"] = training.steps(BEFORE + 1, last)
    training.load(folder)
    with sabotage.applied("data off by one sample"):
        found["data off by one sample"] = training.steps(BEFORE + 1, last)
    training.load(folder)
    found["schedule off by one"] = training.steps(BEFORE + 1, last, lr_ahead=1)
    return found


def main(work_file: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    work = json.loads(work_file.read_text())
    folder = Path(work["folder"])
    found: dict[str, Any] = {"uninterrupted": saved(work, folder), "resumed": resumed(work, folder)}
    if work["policy"]:
        found["policy"] = checkpoint_policy.found(Training(Plan.from_json(work["policy"])), folder / "policy")
    if os.environ["RANK"] == "0":
        results.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)
