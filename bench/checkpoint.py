"""Save and load of a checkpoint over torch's and DeepSpeed's own: one process on a CPU, its state 1 GB.

`python bench/checkpoint.py [--layers N] [--hidden N] [--pairs N] [--folder PATH]`. The state is that of fp32
training under ZeRO 1: weights and both moments. All sync their files to the disk, ours takes checksums on the
way, and they take turns, so that whatever else the machine does meets each. `stall` is the time until
training may go on, `durable` until the last byte is on the disk and the checkpoint has its name. Memory is
the growth of the process's resident size at its peak (Linux); ours holds its part from the first step on.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from partrain.checkpoint.shelf import checkpoint_name, damage, read_checkpoint
from partrain.data.sources import open_sources
from partrain.engine.build import build_engine, join_world
from partrain.engine.fragments import fragments, inner_optimizer
from partrain.engine.restore import load
from partrain.engine.saving import Retention, Saver
from partrain.engine.snapshot import states_of
from partrain.engine.train import batches, train_step
from partrain.plan.plan import Plan
from tests.engine.plans import Case, plan_of

STEP = 1
Taken = tuple[float, float, int]
"""Seconds until training may go on, seconds until durable, bytes of memory on top."""


def plan(layers: int, hidden: int) -> Plan:
    """A decoder of about 12 x layers x hidden^2 weights."""
    found = plan_of(Case(num_layers=layers, hidden_size=hidden, vocab_size=4096, evaluate=0))
    layout = replace(found.layout, micro_batch_size=1)
    config = {**found.deepspeed, "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1}
    return replace(found, layout=layout, deepspeed=config)


def resident_bytes(field: str) -> int:
    """A size of this process, by its name in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def measured(save: Callable[[], float]) -> Taken:
    """`save` returns the seconds until training may go on."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = resident_bytes("VmRSS"), time.perf_counter()
    stall = save()
    return stall, time.perf_counter() - began, resident_bytes("VmHWM") - before


def sync(folder: Path) -> None:
    """All files of a folder are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def state(engine: Any) -> dict[str, torch.Tensor]:
    """The tensors that we save, by name."""
    found = {}
    for held in fragments(engine, tensor_rank=0, tensor_size=1):
        tensors, _ = states_of(held, inner_optimizer(engine))
        for name, tensor in {"weight": held.master, **tensors}.items():
            found[f"{held.weight.name}/{name}"] = tensor
    return found


class Contest:
    """The three, over one engine."""

    def __init__(self, engine: Any, decided: Plan, folder: Path) -> None:
        self.engine, self.plan, self.folder = engine, decided, folder
        self.tensors = state(engine)
        self.saver = Saver(engine, decided, folder / "ours", rank=0, retention=Retention(1, None))
        before = resident_bytes("VmRSS")
        self.saver.prepare()
        self.saver.wait()
        self.held_bytes = resident_bytes("VmRSS") - before

    def ours(self) -> float:
        began = time.perf_counter()
        self.saver.save(STEP)
        stall = time.perf_counter() - began
        self.saver.wait()
        assert self.saver.failures == []
        return stall

    def torchs(self) -> float:
        began, file = time.perf_counter(), self.folder / "torch" / "state.pt"
        file.parent.mkdir()
        torch.save({name: tensor.clone() for name, tensor in self.tensors.items()}, file)
        sync(file.parent)
        return time.perf_counter() - began

    def deepspeeds(self) -> float:
        began = time.perf_counter()
        self.engine.save_checkpoint(str(self.folder / "deepspeed"), tag="x")
        sync(self.folder / "deepspeed")
        return time.perf_counter() - began

    def load_ours(self) -> float:
        began, path = time.perf_counter(), self.folder / "ours" / checkpoint_name(STEP)
        manifest = read_checkpoint(path)
        assert list(damage(path, manifest)) == []
        load(self.engine, self.plan, 0, folder=path, manifest=manifest)
        return time.perf_counter() - began

    def load_torchs(self) -> float:
        began = time.perf_counter()
        found = torch.load(self.folder / "torch" / "state.pt", weights_only=True)
        for name, tensor in self.tensors.items():
            tensor.copy_(found[name])
        return time.perf_counter() - began

    def load_deepspeeds(self) -> float:
        began = time.perf_counter()
        self.engine.load_checkpoint(str(self.folder / "deepspeed"), tag="x")
        return time.perf_counter() - began

    def clear(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path)


def run(contest: Contest, pairs: int) -> dict[str, list[Taken]]:
    """Every contestant's saves, then its loads, in turns; the first turn warms up and is not counted.

    Saves come first: what DeepSpeed has loaded lies in memory that was never touched.
    """
    saves = {"ours": contest.ours, "torch": contest.torchs, "deepspeed": contest.deepspeeds}
    loads = {"ours": contest.load_ours, "torch": contest.load_torchs, "deepspeed": contest.load_deepspeeds}
    found: dict[str, list[Taken]] = {}
    for _ in range(pairs + 1):
        contest.clear()
        for name, save in saves.items():
            found.setdefault(f"save {name}", []).append(measured(save))
    for _ in range(pairs + 1):
        for name, load_back in loads.items():
            found.setdefault(f"load {name}", []).append(measured(load_back))
    return {name: taken[1:] for name, taken in found.items()}


def report(found: dict[str, list[Taken]], contest: Contest) -> None:
    """A table of medians, and our ratios to the others."""
    middle = {
        name: [statistics.median(column) for column in zip(*taken, strict=True)]
        for name, taken in found.items()
    }
    middle["save ours"][2] += contest.held_bytes
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in contest.tensors.values())
    print(f"{num_bytes / 1e9:.2f} GB\n{'':16}{'stall s':>9}{'durable s':>11}{'memory GB':>11}")
    for name, (stall, durable, memory) in middle.items():
        print(f"{name:16}{stall:9.2f}{durable:11.2f}{memory / 1e9:11.2f}")
    torchs, theirs = (
        [ours[1] / other[1] for ours, other in zip(found["save ours"], found[name], strict=True)]
        for name in ("save torch", "save deepspeed")
    )
    fastest = [
        ours[1] / min(one[1], other[1])
        for ours, one, other in zip(
            *(found[f"save {name}"] for name in ("ours", "torch", "deepspeed")), strict=True
        )
    ]
    stalls = [ours[0] / ours[1] for ours in found["save ours"]]
    print(
        f"durable over torch {statistics.median(torchs):.2f}, over DeepSpeed {statistics.median(theirs):.2f},"
    )
    print(f"over the faster of both {statistics.median(fastest):.2f}")
    print(f"stall over our own whole save {statistics.median(stalls):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": "29655", "DS_ACCELERATOR": "cpu"}
    join_world("cpu")
    decided = plan(given.layers, given.hidden)
    engine = build_engine(decided, rank=0, device=torch.device("cpu"))
    source = open_sources(decided).train
    train_step(engine, batches(source, decided, step=STEP, replica=0, device=engine.device), lr=1e-4)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        contest = Contest(engine, decided, Path(folder))
        report(run(contest, given.pairs), contest)


if __name__ == "__main__":
    main()
