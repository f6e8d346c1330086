"""`partrain checkpoint`, without torch: what is in a checkpoint, does it load, are its bytes right."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from partrain.checkpoint.boxes import Box, numel
from partrain.checkpoint.manifest import Manifest, Slice, StoredFile, StoredWeight
from partrain.checkpoint.shelf import MANIFEST, checkpoint_name, read_checkpoint
from partrain.cli.planning import plan_job
from partrain.layout.ranks import Coordinate, rank_of
from partrain.model.decoder import decoder_weights
from partrain.model.weights import shard_range
from partrain.plan.plan import Plan
from partrain.spec.values import plain
from tests.checkpoint.made import make
from tests.cli.command import ROOT, child, job_file, partrain

STATES = {"weight": "F32", "exp_avg": "F32", "exp_avg_sq": "F32"}


def as_saved(folder: Path, plan: Plan, step: int) -> Path:
    """The checkpoint that a run of `plan` would leave, its files full of holes in place of numbers.

    Each tensor rank's part of a weight is cut over the replicas that ZeRO 1 has.
    """
    layout, path = plan.layout, folder / checkpoint_name(step)
    ends: dict[str, int] = {}
    weights = {}
    stage_of = {layer: s.stage for s in plan.stages for layer in range(s.first, s.last + 1)}
    for weight in decoder_weights(plan.model):
        slices = []
        for tp in range(layout.tp if weight.split is not None else 1):
            box: list[tuple[int, int]] = [(0, size) for size in weight.shape]
            if weight.split is not None:
                box[weight.split] = shard_range(weight, layout.tp, tp)
            slices += cut(tuple(box), plan, Coordinate(pp=stage_of[weight.layer], dp=0, tp=tp), ends)
        if weight.tied_to is None:
            weights[weight.name] = StoredWeight(weight.shape, STATES, {"step": float(step)}, tuple(slices))
    path.mkdir(parents=True)
    for name, size in ends.items():
        with open(path / name, "wb") as file:
            os.truncate(file.fileno(), size)
    manifest = Manifest(
        step=step,
        samples=step * layout.global_batch_size,
        optimizer="adamw",
        loss_scale={},
        plan=plain(plan),
        job=None,
        versions={"partrain": "0.1.0"},
        created=time.time(),
        files={name: StoredFile(name, size, "0" * 64) for name, size in ends.items()},
        weights=weights,
    )
    (path / MANIFEST).write_text(manifest.to_json())
    return path


def cut(box: Box, plan: Plan, at: Coordinate, ends: dict[str, int]) -> list[Slice]:
    """One slice a replica, each in its rank's file."""
    found, size, dp = [], numel(box), plan.layout.dp
    for replica in range(dp if size >= dp else 1):
        start, stop = (size * part // (dp if size >= dp else 1) for part in (replica, replica + 1))
        rank = rank_of(Coordinate(pp=at.pp, dp=replica, tp=at.tp), plan.layout)
        name = f"rank-{rank:05d}.safetensors"
        offset = ends.get(name, 64)
        found.append(Slice(box, start, stop, name, offset))
        ends[name] = offset + 12 * (stop - start)
    return found


def test_inspect_tells_what_is_in_it(tmp_path: Path):
    make(tmp_path, 10)
    shown = partrain("checkpoint", "inspect", str(tmp_path))
    assert shown.code == 0
    assert "step        10, 80 sequences trained on" in shown.out
    told = json.loads(partrain("checkpoint", "inspect", str(tmp_path), "--json").out)
    assert told["weights"] == {
        "matrix": {"shape": [4, 3], "states": {"weight": "F32", "exp_avg": "F32"}, "slices": 4}
    }


def test_verify_reads_every_byte(tmp_path: Path):
    path = make(tmp_path, 10)
    assert partrain("checkpoint", "verify", str(path)).code == 0
    file = path / "rank-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 128
    file.write_bytes(data)
    found = partrain("checkpoint", "verify", str(path))
    assert found.code == 2
    assert "rank-00001.safetensors: its checksum is" in found.err
    told = partrain("checkpoint", "verify", str(path), "--json")
    assert (told.code, json.loads(told.out)["ok"]) == (2, False)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path):
    found = partrain("checkpoint", "inspect", str(tmp_path))
    assert (found.code, "manifest.json: missing" in found.err) == (2, True)


def test_where_none_is_those_that_are_there_are_named(tmp_path: Path, saved: Path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for path, message, fix in (
        (tmp_path / "nowhere" / "step-00000001", "there is no such checkpoint", "`partrain runs`"),
        (saved.with_name("step-00000003"), "there is no such checkpoint", f"{saved.parent} has {saved.name}"),
        (saved / MANIFEST, "not a folder", "name one, or a run's folder"),
        (tmp_path / "run", "has no checkpoint yet", "name another run's folder"),
    ):
        found = partrain("checkpoint", "inspect", str(path), "--json")
        told = json.loads(found.out)
        assert (found.code, message in told["error"], fix in told["fix"]) == (2, True, True), told


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return as_saved(tmp_path, plan_job(job_file(tmp_path), None).plan, 2)


def inspect(path: Path, *changes: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    """Exit code and what is said of the fit under the job beside the checkpoint."""
    options = [word for change in changes for word in ("--set", change)]
    job = path.parent / "job.yaml"
    found = partrain("checkpoint", "inspect", str(path), "--for", str(job), *options, "--json")
    return found.code, json.loads(found.out)["fit"]


def test_it_loads_under_any_layout_of_its_job(saved: Path):
    code, same = inspect(saved)
    assert (code, same["faults"], same["notes"]) == (0, [], [])
    code, other = inspect(saved, "parallel.pp=1", "parallel.tp=2", "parallel.zero=3")
    assert (code, other["faults"]) == (0, [])
    assert {weight["verdict"] for weight in other["weights"].values()} == {"loads"}
    assert "the layout differs" in other["notes"][0]


def test_every_weight_that_does_not_fit_is_named(saved: Path):
    code, found = inspect(saved, "model.num_layers=5")
    assert code == 2
    wrong = {
        name: weight["verdict"] for name, weight in found["weights"].items() if weight["verdict"] != "loads"
    }
    assert set(wrong.values()) == {"missing"}
    assert all(name.startswith("layers.4.") for name in wrong)
    assert len(found["faults"]) == len(wrong) > 5
    _, found = inspect(saved, "model.vocab_size=300", "model.num_layers=3", "model.tie_embeddings=true")
    verdicts = {name: weight["verdict"] for name, weight in found["weights"].items()}
    assert verdicts["embedding.weight"] == "shape"
    assert verdicts["layers.3.mlp.up.weight"] == "extra"


def test_a_batch_that_would_lose_the_place_in_the_data_is_refused(saved: Path):
    code, found = inspect(saved, "training.global_batch_size=16")
    assert code == 2
    assert found["hints"] == ["training.global_batch_size: 8"]


def test_the_largest_job_s_checkpoint_is_judged(tmp_path: Path):
    """In a second, by bench/import_time.py."""
    job = ROOT / "jobs" / "llama-3.1-405b-128xdgx-h100.yaml"
    path = as_saved(tmp_path, plan_job(job, None).plan, 1000)
    told = child("checkpoint", "inspect", str(path), "--for", str(job), "--json", cwd=tmp_path)
    found = json.loads(told.out)
    assert (told.code, found["fit"]["loads"], found["files"]) == (0, True, 1024)
    assert found["size_bytes"] > 12 * 405e9


def test_what_a_hostile_manifest_says_reaches_no_terminal_raw(tmp_path: Path):
    """An escape sequence in every name that is shown."""
    job = job_file(tmp_path)
    path = as_saved(tmp_path, plan_job(job, None).plan, 2)
    manifest = read_checkpoint(path)
    weights = {f"{name}\x1b[2J": weight for name, weight in manifest.weights.items()}
    hostile = replace(manifest, weights=weights, optimizer="\x1b[2J", versions={"\x1b[2J": "\x1b[2J"})
    hostile = replace(hostile, plan={"data": {"source": "\x1b[2J"}})
    (path / MANIFEST).write_text(hostile.to_json())
    found = partrain("checkpoint", "inspect", str(path), "--for", str(job))
    assert found.code == 2
    assert "\x1b" not in found.out
    assert "embedding.weight\\x1b[2J is not in the job's model" in found.out
