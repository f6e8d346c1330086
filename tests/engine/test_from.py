"""transformers -> a folder -> an engine -> a checkpoint -> a folder: every bit of every weight comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from partrain.checkpoint.shelf import Found, checkpoints, read_checkpoint
from partrain.cli.planning import plan_job_text
from partrain.launch.export import export
from tests.engine.families import CONFIGS, theirs
from tests.engine.processes import run_world

pytestmark = pytest.mark.torch

FAMILIES = [name for name in CONFIGS if name != "phi"]  # phi is not read
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ALONE = [(name, stored, "fp32", "zero: 0") for name in FAMILIES for stored in DTYPES]
HALF = [("llama-3", "fp32", "bf16", "zero: 1"), ("pythia", "fp32", "bf16", "zero: 3")]
SPLIT = [(name, "fp32", "bf16", "tp: 2, pp: 2") for name in ("llama-3", "qwen3", "gpt2", "pythia")]
Kind = tuple[str, str, str, str]
"""Model, precision of its files, precision of the training, layout."""


def case(kind: Kind, folder: Path) -> dict[str, Any]:
    name, stored, precision, layout = kind
    source = folder / "source"
    module: Any = theirs(name)
    module.to(DTYPES[stored]).save_pretrained(source, max_shard_size="60KB" if name == "qwen3" else "5GB")
    job = f"""
version: 1
name: started
model: {{from: {source}}}
data: {{train: synthetic}}
training: {{sequence_length: 32, global_batch_size: 8, steps: 3, precision: {precision}}}
parallel: {{{layout}}}
hardware: {{node: cpu}}
"""
    plan = plan_job_text(job.encode(), folder / "job.yaml", None).plan
    return {"plan": plan.to_json(), "target": str(folder / "checkpoints")}


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}


@pytest.mark.parametrize(("kinds", "size"), [(ALONE + HALF, 1), (SPLIT, 4)], ids=["alone", "split"])
def test_every_bit_of_a_published_model_comes_back(tmp_path: Path, kinds: list[Kind], size: int) -> None:
    folders = [tmp_path / str(number) for number in range(len(kinds))]
    work = [case(kind, folder) for kind, folder in zip(kinds, folders, strict=True)]
    run_world("tests.engine.from_world", work, size, tmp_path / "world")
    for (name, stored, *_), folder in zip(kinds, folders, strict=True):
        (path,) = checkpoints(folder / "checkpoints")
        export(Found(path, read_checkpoint(path)), folder / "exported", precision=stored)
        came, went = tensors_of(folder / "source"), tensors_of(folder / "exported")
        assert came.keys() == went.keys(), name
        for key, value in came.items():
            assert went[key].dtype == value.dtype == DTYPES[stored]
            assert torch.equal(went[key], value), (name, key)
