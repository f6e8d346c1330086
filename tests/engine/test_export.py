"""A checkpoint of every family, written under a layout, exported and loaded by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from partrain.checkpoint.export import INDEX
from partrain.checkpoint.safetensors import entries
from partrain.checkpoint.shelf import Found
from partrain.checkpoint.trained import trained
from partrain.engine.export import words
from partrain.engine.whole import whole_decoder
from partrain.errors import CheckpointError, PartrainError
from partrain.launch.export import config_text, export
from partrain.model.huggingface import stored_weights
from partrain.run.exporting import ExportRequest
from partrain.spec.huggingface import fields_of_config
from partrain.spec.model import ModelSection
from partrain.spec.resolve import resolve_model
from partrain.spec.values import read
from tests.cli.command import child
from tests.engine.families import CONFIGS, published, spec_of, taken, theirs, tokens_of
from tests.engine.written import written

pytestmark = pytest.mark.torch

BOUND = 1e-5
FAMILIES = [name for name in CONFIGS if name != "phi"]  # phi is not read


def saved(folder: Path, name: str, *, precision: str = "fp32") -> tuple[Any, Found]:
    """The model of transformers, and its weights as a checkpoint of ours."""
    module: Any = theirs(name)
    model = spec_of(module)
    values = {published(key, model): value.detach() for key, value in module.named_parameters()}
    wholes = {key: taken(entry, values, model) for key, entry in stored_weights(model).items()}
    return module, written(folder, model, wholes, precision=precision)


def loaded(folder: Path) -> Any:
    """What transformers makes of a folder, every tensor of it used and none missing."""
    module, said = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True
    )
    assert {key: set(value) for key, value in said.items() if value} == {}
    return module.eval()


def assert_same_weights(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    theirs = dict(wanted.named_parameters())
    assert {name for name, _ in found.named_parameters()} == set(theirs)
    for name, value in found.named_parameters():
        assert value.dtype == dtype
        assert torch.equal(value, theirs[name].to(dtype)), name


def our_logits(found: Found, inputs: Tensor) -> Tensor:
    model = trained(found.manifest).model
    cpu = torch.device("cpu")
    x: Any = inputs
    for step in whole_decoder(model, found.manifest, found.path, device=cpu, dtype=torch.float32):
        x = step(x)
    return F.linear(*x)[..., : model.vocab_size]


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_what_was_trained(tmp_path: Path, name: str) -> None:
    module, found = saved(tmp_path, name)
    model, folder = trained(found.manifest).model, tmp_path / "exported"
    folder.mkdir()
    request = ExportRequest(
        checkpoint=str(found.path), folder=str(folder), precision="fp32", shard_bytes=10**9
    )
    assert len(list(words(request))) == 1
    (folder / "config.json").write_text(config_text(model, "fp32"))
    again = loaded(folder)
    assert_same_weights(again, module, torch.float32)
    assert type(again) is type(module)
    inputs, _ = tokens_of(model)
    with torch.no_grad():
        ours, exported = our_logits(found, inputs), again(inputs, use_cache=False).logits
    assert float((ours - exported).abs().max()) <= BOUND
    fields, reasons = fields_of_config(json.loads((folder / "config.json").read_text()))
    assert reasons == ()
    section = read(ModelSection, dict(fields))
    assert resolve_model(section, sequence_length=40, vocab_size=None).model == model


def test_a_folder_of_several_files_has_an_index(tmp_path: Path) -> None:
    module, found = saved(tmp_path, "pythia")
    folder, most = tmp_path / "new" / "exported", 70_000
    written = export(found, folder, shard_bytes=most)
    assert written.notes == ()
    assert written.files == {path.name: path.stat().st_size for path in folder.iterdir()}
    index = json.loads((folder / INDEX).read_text())
    shards = {path.name: entries(path) for path in folder.glob("*.safetensors")}
    assert len(shards) > 2
    for tensors in shards.values():
        assert len(tensors) == 1 or sum(entry.num_bytes for entry in tensors.values()) <= most
    assert index["weight_map"] == {key: file for file, tensors in shards.items() for key in tensors}
    assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in module.parameters())
    assert [path.name for path in folder.parent.iterdir()] == ["exported"]
    assert_same_weights(loaded(folder), module, torch.float32)


@pytest.mark.parametrize(
    ("options", "dtype"), [((), torch.bfloat16), (("--dtype", "fp16"), torch.float16)], ids=["own", "other"]
)
def test_the_command_writes_in_the_precision_of_the_training_or_another(
    tmp_path: Path, options: tuple[str, ...], dtype: torch.dtype
) -> None:
    module, found = saved(tmp_path / "checkpoints", "llama-3", precision="bf16")
    told = child("checkpoint", "export", str(found.path), "exported", *options, "--json", cwd=tmp_path)
    assert told.code == 0, told.err
    document = json.loads(told.out)
    assert (document["path"], document["step"]) == ("exported", 3)
    assert set(document["files"]) == {"model.safetensors", "config.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "exported"]
    assert_same_weights(loaded(tmp_path / "exported"), module, dtype)


def test_what_fp16_cannot_say_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    module: Any = theirs("gpt2")
    model = spec_of(module)
    values = {published(key, model): value.detach() for key, value in module.named_parameters()}
    wholes = {key: taken(entry, values, model) for key, entry in stored_weights(model).items()}
    wholes["final_norm.bias"][3] = 70_000.0
    found = written(tmp_path / "checkpoints", model, wholes)
    with pytest.raises(PartrainError, match=r"final_norm\.bias has elements beyond fp16") as refused:
        export(found, tmp_path / "exported", precision="fp16")
    assert refused.value.exit_code == CheckpointError.exit_code
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
