"""transformers -> a folder -> an engine -> a checkpoint -> a folder: every bit of every weight comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from partrain.checkpoint.shelf import checkpoints
from partrain.cli.planning import plan_job_text
from partrain.engine.export import words
from partrain.plan.decide import largest_stage
from partrain.plan.ds_config import deepspeed_config
from partrain.plan.plan import Plan
from partrain.run.exporting import ExportRequest
from partrain.spec.training import Precision
from tests.engine.families import CONFIGS, theirs
from tests.engine.processes import run_world

pytestmark = pytest.mark.torch

FAMILIES = [name for name in CONFIGS if name != "phi"]  # phi is not read
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Kind(NamedTuple):
    """A model in a folder, and a training that starts from it."""

    name: str
    stored: Precision = "fp32"
    """Precision of the files."""
    precision: str = "bf16"
    """Precision of the training."""
    layout: str = "zero: 1"
    saved: str = "whole"
    """How the folder came to be: of the model with its head, of its base model, or as a cache has it."""


ALONE = [Kind(name, stored, "fp32", "zero: 0") for name in FAMILIES for stored in DTYPES]
HALF = [Kind("llama-3"), Kind("pythia", layout="zero: 3")]
BASE = [Kind(name, saved="base") for name in ("llama-3", "gemma", "gpt2")]  # those with a tied head
CACHED = [Kind("mistral", saved="cached"), Kind("qwen3", saved="cached")]
SPLIT = [Kind(name, layout="tp: 2, pp: 2") for name in ("llama-3", "qwen3", "gpt2", "pythia")]
SHARED = [
    Kind("gpt2", layout="dp: 4, zero: 2", saved="base"),
    Kind("llama-3", precision="fp32", layout="dp: 4, zero: 3"),
    Kind("qwen3", layout="dp: 2, tp: 2, zero: 2, offload: optimizer", saved="cached"),
    Kind("pythia", layout="dp: 4, zero: 3, offload: optimizer"),
    Kind("llama-2", "bf16", layout="dp: 2, tp: 2, zero: 3, offload: parameters"),
]


BEYOND = Kind("gpt2", layout="dp: 2, tp: 2")
"""Trained in fp16, some weights being too large for it."""


def write(kind: Kind, folder: Path) -> str:
    """Put the model into a folder as transformers does; the prefix that its names lack there."""
    module: Any = theirs(kind.name).to(DTYPES[kind.stored])
    prefix = f"{module.base_model_prefix}." if kind.saved == "base" else ""
    module = module.base_model if prefix else module
    if kind == BEYOND:  # 65519 is rounded to fp16's largest number, 65504; 65520 to infinity
        for name, value in (("wte", 65519.0), ("h.1.mlp.c_fc", 65520.0), ("ln_f", float("-inf"))):
            module.transformer.get_submodule(name).weight.data[..., 5] = value
    module.save_pretrained(folder, max_shard_size="60KB" if kind.name == "qwen3" else "5GB")
    if kind == SHARED[0]:  # with masks, as GPT-2 was published
        masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(3)}
        path = folder / "model.safetensors"
        save_file({**load_file(path), **masks}, path, {"format": "pt"})
    if kind.saved == "cached":
        blobs = folder.parents[1] / "blobs"
        blobs.mkdir()
        for number, path in enumerate(folder.iterdir()):
            path.rename(blobs / str(number))
            path.symlink_to(f"../../blobs/{number}")
    return prefix


def case(kind: Kind, folder: Path) -> dict[str, Any]:
    _, _, precision, layout, _ = kind
    source = folder / "models--a--b" / "snapshots" / "0f"
    prefix = write(kind, source)
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
    if kind == BEYOND:
        plan = in_fp16(plan)
    return {"plan": plan.to_json(), "target": str(folder / "checkpoints"), "prefix": prefix}


def in_fp16(plan: Plan) -> Plan:
    """Which no job for a CPU may ask for."""
    training = replace(plan.training, precision="fp16")
    largest = largest_stage(plan.model, plan.layout)
    config = deepspeed_config(training, plan.layout, rank_parameters=largest, raw={})
    return replace(plan, training=training, deepspeed=config)


def tensors_of(folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """Every tensor but the masks, by its name in a model with a head."""
    found = (load_file(path).items() for path in folder.glob("*.safetensors"))
    return {prefix + key: value for items in found for key, value in items if not key.endswith(".attn.bias")}


@pytest.mark.parametrize(
    ("kinds", "size"),
    [(ALONE + HALF + BASE + CACHED, 1), (SPLIT + SHARED, 4)],
    ids=["alone", "split"],
)
def test_every_bit_of_a_published_model_comes_back(tmp_path: Path, kinds: list[Kind], size: int) -> None:
    folders = [tmp_path / str(number) for number in range(len(kinds))]
    work = [case(kind, folder) for kind, folder in zip(kinds, folders, strict=True)]
    beyond = [case(BEYOND, tmp_path / "beyond")] if size == 4 else []
    run_world("tests.engine.from_world", [*work, *beyond], size, tmp_path / "world")
    for kind, folder, started in zip(kinds, folders, work, strict=True):
        (path,), exported = checkpoints(folder / "checkpoints"), folder / "exported"
        exported.mkdir()
        request = ExportRequest(
            checkpoint=str(path), folder=str(exported), precision=kind.stored, shard_bytes=10**9
        )
        assert len(list(words(request))) == 1
        came = tensors_of(folder / "models--a--b" / "snapshots" / "0f", started["prefix"])
        went = tensors_of(exported)
        assert came.keys() == went.keys(), kind
        for key, value in came.items():
            assert went[key].dtype == value.dtype == DTYPES[kind.stored]
            assert torch.equal(went[key], value), (kind, key)
    said = [
        (tmp_path / "beyond" / f"checkpoints-refused-by-{rank}").read_text()
        for rank in range(len(beyond) * 4)
    ]
    assert all("65504: transformer.h.1.mlp.c_fc.weight, transformer.ln_f.weight\n" in words for words in said)
