"""Trains plans and spoils them at one step on one rank: `python -m tests.engine.spoilt_world WORK RESULTS`.

Each rank writes what ended its training to a file of its own; the records are what the product wrote.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partrain.data.sources import Sources, open_source
from partrain.engine.build import build_engine, join_world
from partrain.engine.checkpoints import Checkpoints
from partrain.engine.metrics import Recorder
from partrain.engine.peak_memory import PeakMemory
from partrain.engine.train import train
from partrain.errors import GuardError
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from tests.engine.world import CPU, LINEAR

NOW = {"step": 0}
RANK = int(os.environ.get("RANK", "0"))


def infinite_once(tensor: Tensor) -> Tensor:
    return torch.cat((torch.full_like(tensor.reshape(-1)[:1], float("inf")), tensor.reshape(-1)[1:])).view_as(
        tensor
    )


def hook(module: nn.Module, fault: dict[str, Any]) -> None:
    """At its step, make one number infinite that comes out of the module of a weight, or of its gradient;
    `passing`: the first time only."""
    fired = []

    def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if NOW["step"] != fault["step"] or (fault["kind"] == "passing" and fired):
            return output
        fired.append(NOW["step"])
        if fault["kind"] != "gradient":
            return infinite_once(output)
        same = output.view_as(output)
        if same.requires_grad:
            same.register_hook(infinite_once)
        return same

    for owner in module.modules():
        if any(p.entry.name == fault["weight"] for p in owner.parameters(recurse=False)):
            owner.register_forward_hook(after)


def change_weight(module: nn.Module, fault: dict[str, Any]) -> None:
    """Put three nan into this rank's share of a weight, or make all that it has of it larger."""
    for parameter in module.parameters():
        if parameter.entry.name == fault["weight"]:  # type: ignore[attr-defined]
            shares = [getattr(parameter, "ds_tensor", parameter), parameter]
            for share in {tensor.data_ptr(): tensor.data for tensor in shares if tensor.numel()}.values():
                if fault["kind"] == "weight":
                    share.view(-1)[:3] = float("nan")
                else:
                    share.mul_(50.0)


def run(plan: Plan, steps: int, faults: list[dict[str, Any]], folder: RunFolder) -> str:
    """What ended the training; empty: nothing did."""
    wish = plan.training
    folder.path.mkdir(exist_ok=True)
    folder.job.write_text("")
    source = open_source(
        plan.data, sequence_length=wish.sequence_length, vocab_size=plan.model.vocab_size, seed=wish.seed
    )
    engine, said = build_engine(plan, rank=RANK, device=CPU), ""
    here = [fault for fault in faults if fault["rank"] in (RANK, None)]
    for fault in here:
        if fault["kind"] in ("activation", "gradient", "passing"):
            hook(engine.module, fault)
    checkpoints = Checkpoints(engine, plan, folder, rank=RANK, device=CPU)
    recorder = Recorder(plan, folder, RANK, PeakMemory(plan, rank=RANK, device=CPU))
    steps_of = train(
        engine, plan, Sources(source, None), rank=RANK, recorder=recorder, checkpoints=checkpoints
    )
    try:
        for step in steps_of:
            NOW["step"] = step
            for fault in here:
                if step == fault["step"] and fault["kind"] in ("weight", "growth"):
                    change_weight(engine.module, fault)
            if step > steps:
                break
    except GuardError as error:
        said = error.message
    recorder.close()
    checkpoints.close()
    engine.destroy()
    # Building a ZeRO 3 engine replaces this function for the whole process and leaves it so.
    F.linear = LINEAR
    return said


def main(work: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    with open(results.with_name(f"said-{RANK}.jsonl"), "w", encoding="utf-8") as file:
        for number, case in enumerate(json.loads(work.read_text())):
            plan, folder = Plan.from_json(case["plan"]), RunFolder(results.with_name(f"run-{number}"))
            said = run(plan, case["steps"], case["faults"], folder)
            file.write(json.dumps(said) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)
