"""Saved under any layout, resumed under any other: the losses of the run that was not stopped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partrain.checkpoint.shelf import checkpoints, damage, read_checkpoint
from partrain.checkpoint.trained import trained
from partrain.engine.build import DTYPES
from partrain.engine.whole import whole_decoder
from partrain.plan.plan import Plan
from tests.engine import plain
from tests.engine.checkpoint_policy import STEPS
from tests.engine.plans import Case, plan_of
from tests.engine.processes import wait_for, world

pytestmark = pytest.mark.torch

FP32_LOSS, HALF_LOSS = 5e-6, 2e-3
SHAPE: dict[str, Any] = {
    "tied": True,
    "num_layers": 2,
    "vocab_size": 50,
    "shape": "gpt2",
    "evaluate": 0,
    "dropout": 0.1,
}
CASES = {
    "alone": Case(zero=0, **SHAPE),
    "replicas": Case(dp=2, tp=2, zero=0, **SHAPE),
    "three replicas, bf16": Case(dp=3, precision="bf16", **SHAPE),
    "three replicas, zero 3": Case(dp=3, zero=3, **SHAPE),
    "stages and shards": Case(pp=2, tp=2, num_micro_batches=2, **SHAPE),
    "stages and replicas, fp16": Case(dp=2, pp=2, precision="fp16", scale_power=2, **SHAPE),
    "four shards": Case(tp=4, sequence_parallel=True, **SHAPE),
    "zero 2, offloaded": Case(dp=2, tp=2, zero=2, offload="optimizer", **SHAPE),
    "lion, three replicas": Case(dp=3, zero=3, optimizer="lion", **SHAPE),
    "lion, stages": Case(dp=2, pp=2, optimizer="lion", precision="bf16", **SHAPE),
    "muon, zero 2": Case(dp=2, tp=2, zero=2, optimizer="muon", **SHAPE),
    "muon, three replicas": Case(dp=3, optimizer="muon", **SHAPE),
}
"""Worlds of 1, 3 and 4 processes; 56 rows of the vocabulary on one tensor rank, 64 on two and on four."""
CONTROL = "three replicas, zero 3"
CONTROLS = (
    "without step",
    "without exp_avg",
    "without exp_avg_sq",
    "data off by one sample",
    "schedule off by one",
)
Found = dict[str, dict[str, Any]]


def sources_of(name: str) -> list[str]:
    """Layouts with the same optimizer."""
    return [other for other, case in CASES.items() if case.optimizer == CASES[name].optimizer]


def short_plan() -> Plan:
    """Of so many steps that its end is saved."""
    found = plan("alone")
    return replace(found, training=replace(found.training, steps=STEPS))


def plan(name: str) -> Plan:
    """One learning rate for both precisions."""
    found = plan_of(CASES[name])
    training = replace(found.training, steps=20, optimizer=replace(found.training.optimizer, lr=1e-3))
    return replace(found, training=training)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all is saved; in it a disk of 1 MiB, if this machine lets the test have one."""
    path = tmp_path_factory.mktemp("checkpoints")
    small = path / "policy" / "full"
    small.mkdir(parents=True)
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    is_mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    yield path
    if is_mounted:
        subprocess.run(["umount", str(small)], check=True)


@pytest.fixture(scope="module")
def results(folder: Path) -> Found:
    """Losses without and with an interruption, from worlds that run at the same time."""
    found: Found = {"uninterrupted": {}, "resumed": {}, "policy": {}}
    with ExitStack() as stack:
        worlds = []
        for size in sorted({case.world_size for case in CASES.values()}):
            place = folder / f"world-{size}"
            place.mkdir()
            names = [name for name, case in CASES.items() if case.world_size == size]
            work = {
                "plans": {name: plan(name).to_json() for name in names},
                "sources": {name: sources_of(name) for name in names},
                "folder": str(folder),
                "control": CONTROL,
                "policy": short_plan().to_json() if size == 1 else "",
            }
            (place / "work.json").write_text(json.dumps(work))
            files = (str(place / "work.json"), str(place / "results.json"))
            ranks = stack.enter_context(world("tests.engine.checkpoint_world", size, files, place))
            worlds.append((ranks, place))
        for ranks, place in worlds:
            wait_for(ranks, place)
            for kind, losses in json.loads((place / "results.json").read_text()).items():
                found[kind] |= losses
    return found


def farthest(one: list[list[float]], other: list[list[float]]) -> float:
    """Largest difference of two runs' losses."""
    return max(abs(a - b) for (a, _), (b, _) in zip(one, other, strict=True))


@pytest.mark.parametrize(("source", "target"), [(s, t) for t in CASES for s in sources_of(t)])
def test_any_layout_resumes_from_any_other(source: str, target: str, results: Found) -> None:
    found, wanted = results["resumed"][f"{source} -> {target}"], results["uninterrupted"][source]
    if source == target:
        assert found == wanted
    is_fp32 = {CASES[source].precision, CASES[target].precision} == {"fp32"}
    assert farthest(found, wanted) <= (FP32_LOSS if is_fp32 else HALF_LOSS)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_resume_that_loses_something_is_seen(control: str, results: Found) -> None:
    assert farthest(results["resumed"][control], results["uninterrupted"][CONTROL]) > 10 * FP32_LOSS


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_holds_every_weight_of_the_model_once(name: str, results: Found, folder: Path) -> None:
    (path,) = checkpoints(folder / name)
    manifest = read_checkpoint(path)
    assert list(damage(path, manifest)) == []
    assert sum(shape_numel(weight.shape) for weight in manifest.weights.values()) == plan(name).parameters
    states = ("weight", "exp_avg") if "lion" in name else ("weight", "exp_avg", "exp_avg_sq")
    assert {tuple(weight.states.items()) for weight in manifest.weights.values()} == {
        tuple((state, "F32") for state in states)
    }
    assert {tuple(weight.scalars.items()) for weight in manifest.weights.values()} == {
        () if "lion" in name else (("step", 3),)
    }
    assert bool(manifest.loss_scale) == ("fp16" in name)
    assert (manifest.step, manifest.samples) == (3, 72)


@pytest.mark.parametrize("name", CASES)
def test_one_device_reads_the_model_of_any_layout(name: str, results: Found, folder: Path) -> None:
    """The plain decoder with the weights that it reads has the loss of the layout's next step."""
    (path,) = checkpoints(folder / name)
    manifest, wish = read_checkpoint(path), plan(name)
    assert trained(manifest).model == wish.model
    dtype = DTYPES[wish.training.precision]
    steps = whole_decoder(wish.model, manifest, path, device=torch.device("cpu"), dtype=dtype)
    held = {p.entry.name: p.detach()[: p.entry.shape[0]] for module in steps for p in module.parameters()}
    weights = {"head.weight": held["embedding.weight"], **held}  # tied
    loss = plain.loss_of(weights, wish, plain.global_batch(wish, 4), 4)
    wanted, _ = results["uninterrupted"][name][0]
    assert abs(loss.item() - wanted) <= (FP32_LOSS if dtype == torch.float32 else HALF_LOSS)


def shape_numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def test_a_run_is_saved_when_it_is_asked_to_every_so_many_steps_and_at_its_end(results: Found) -> None:
    found = results["policy"]["when"]
    assert found["names"] == ["step-00000002", "step-00000003", "step-00000006"]
    assert found["ended"] == [False] * STEPS
    assert not found["asked"]
    assert results["policy"]["auto"]["names"] == found["names"]
    assert results["policy"]["none"]["names"] == []


@pytest.mark.parametrize("how", ["signal", "file"])
def test_a_run_that_is_told_to_stop_saves_and_ends_after_its_step(how: str, results: Found) -> None:
    assert results["policy"][how] == {"names": ["step-00000002"], "ended": [False, True]}


def test_damaged_checkpoints_are_skipped_and_named_and_never_all_forgotten(results: Found) -> None:
    found = results["policy"]["damage"]
    assert found["done"] == 2
    newest, before, goes_on = found["said"]
    assert newest.startswith("skipped step-00000006: rank-00000.safetensors: its checksum is ")
    assert before.startswith("skipped step-00000004: rank-00000.safetensors: has ")
    assert goes_on == "goes on from step-00000002"
    assert all(name in found["refused"] for name in ("step-00000002", "step-00000004", "step-00000006"))


def test_a_save_that_fails_is_told_and_the_run_goes_on_or_stops_as_the_job_says(results: Found) -> None:
    goes_on, stops = results["policy"]["fails"], results["policy"]["stops"]
    assert goes_on["files"] == ["latest", "step-00000002", "step-00000006"]
    assert [said for said in goes_on["said"] if "not saved" in said] == [
        "step 4 is not saved: rank 0: File too large"
    ]
    assert goes_on["raised"] == ""
    assert stops["raised"] == "5: step 4 is not saved: rank 0: File too large"
    assert stops["files"] == ["latest", "step-00000002"]


def test_a_full_disk_costs_no_checkpoint(results: Found) -> None:
    found = results["policy"]["full"]
    if not found:
        pytest.skip("this user may not make a small disk")
    assert found["names"] == ["step-00000002"]
    while_written, before, _ = found["said"]
    assert "step 4 is not saved" in while_written
    assert "No space left on device" in while_written
    assert "step 6 is not saved" in before
    assert "free on its disk, a checkpoint takes" in before
    assert "free on its disk, a checkpoint takes" in found["refused"]
