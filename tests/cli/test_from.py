"""`model: {from: DIR}`: folders that are refused before anything is started, without torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from partrain.checkpoint.safetensors import header
from partrain.cli.planning import plan_job
from partrain.run.relaunch import plan_changes
from tests.cli.command import JOB, job_file, partrain
from tests.cli.run_folders import FAILED, run_folder
from tests.cli.test_checkpoint import as_saved

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LAYER = "model.layers.0."
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (16, 8),
    **{f"{LAYER}self_attn.{name}_proj.weight": (8, 8) for name in "qkvo"},
    **{f"{LAYER}mlp.{name}_proj.weight": (12, 8) for name in ("gate", "up")},
    f"{LAYER}mlp.down_proj.weight": (8, 12),
    **{f"{LAYER}{name}_layernorm.weight": (8,) for name in ("input", "post_attention")},
    "model.norm.weight": (8,),
    "lm_head.weight": (16, 8),
}
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
Shapes = dict[str, tuple[int, ...]]


def put(path: Path, shapes: Shapes, kind: str = "F32") -> None:
    first, size = header(((name, kind, shape) for name, shape in shapes.items()), {"format": "pt"})
    path.write_bytes(first + bytes(size))


def checked(folder: Path, spoil: Callable[[Path], object], model: str = "{from: weights}") -> tuple[int, str]:
    """Exit code and words of `check` where the job starts from a folder that is spoilt."""
    weights = folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(CONFIG))
    put(weights / WHOLE, SHAPES)
    spoil(weights)
    ended = partrain(
        "check", str(job_file(folder, JOB.replace("{preset: tiny}", model).replace("pp: 2", "pp: 1")))
    )
    return ended.code, ended.err


def as_shards(folder: Path, **names: str) -> None:
    """Two files and an index, in which `names` are the files' in place of their own."""
    (folder / WHOLE).unlink()
    found = {}
    for name, part in (("one", list(SHAPES)[:5]), ("two", list(SHAPES)[5:])):
        put(folder / f"{name}.safetensors", {key: SHAPES[key] for key in part})
        found |= dict.fromkeys(part, names.get(name, f"{name}.safetensors"))
    (folder / INDEX).write_text(json.dumps({"weight_map": found}))


def changed(folder: Path, **shapes: tuple[int, ...] | None) -> None:
    put(folder / WHOLE, {key: shape for key, shape in {**SHAPES, **shapes}.items() if shape is not None})


def pickled(folder: Path) -> None:
    (folder / WHOLE).rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    data = (folder / WHOLE).read_bytes()
    (folder / WHOLE).write_bytes(data[:-4])


def of_another_kind(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba"}))


def several_wrong(folder: Path) -> None:
    changed(folder, **{"model.norm.weight": None, "lm_head.weight": (15, 8), "adapter.weight": (3,)})


def linked(folder: Path, target: str = "../elsewhere.safetensors") -> None:
    """The weights are a link."""
    (folder / WHOLE).rename(folder.parent / "elsewhere.safetensors")
    (folder / WHOLE).symlink_to(target)


def into_another_cache(folder: Path) -> None:
    """A blob is a link once more, or the blobs are."""
    blobs, other = folder.parent / "blobs", folder.parent / "others"
    other.mkdir()
    blobs.symlink_to(other)
    linked(folder, "../blobs/weights")
    (folder.parent / "elsewhere.safetensors").rename(other / "weights")


SPOILT: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "only pickles": (pickled, ("model.from: there is no model.safetensors", "only pickles")),
    "a pickle by another name": (
        lambda folder: (folder / WHOLE).write_bytes(b"PK\x03\x04" + bytes(96)),
        ("a pickle; only safetensors files are read",),
    ),
    "cut": (cut, ("its tensors end at byte", "the file at")),
    "a list for a header": (
        lambda folder: (folder / WHOLE).write_bytes((2).to_bytes(8, "little") + b"[]"),
        ("its header cannot be read: no JSON object",),
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), ("model.from: there is no config.json",)),
    "another kind": (of_another_kind, ('model.from: model_type: "mamba" came',)),
    "of integers": (lambda folder: put(folder / WHOLE, SHAPES, "I8"), ("is I8; F32, BF16, F16 can be read",)),
    "several": (
        several_wrong,
        (
            "model.norm.weight [8] is missing",
            "lm_head.weight in model.safetensors is [15, 8], of the model [16, 8]",
            "adapter.weight [3] in model.safetensors is no tensor of the model",
        ),
    ),
    "an index that leads away": (
        lambda folder: as_shards(folder, one="../weights/one.safetensors"),
        ('"../weights/one.safetensors" is not the name of a safetensors file beside it',),
    ),
    "an index of what is not there": (
        lambda folder: as_shards(folder, one="three.safetensors"),
        ("three.safetensors: missing",),
    ),
    "an index that is wrong": (
        lambda folder: as_shards(folder, one="two.safetensors"),
        ("model.embed_tokens.weight is in no file, by model.safetensors.index.json in two.safetensors",),
    ),
    "a link that leads away": (linked, ("model.safetensors: a link out of the folder, to /",)),
    "a link to nothing": (
        lambda folder: linked(folder, "gone"),
        ("model.safetensors: missing",),
    ),
    "a link of a link": (into_another_cache, ("model.safetensors: a link out of the folder, to /",)),
    "an index that is a link": (
        lambda folder: (
            as_shards(folder),
            (folder / INDEX).unlink(),
            (folder / INDEX).symlink_to("/dev/zero"),
        ),
        ("model.from: model.safetensors.index.json: a link out of the folder, to /dev/zero",),
    ),
    "shards that lead away": (
        lambda folder: (
            as_shards(folder),
            (folder / "two.safetensors").rename(folder.parent / "two"),
            (folder / "two.safetensors").symlink_to("../two"),
        ),
        ("two.safetensors: a link out of the folder, to /",),
    ),
    "names of both kinds": (
        lambda folder: changed(folder, **{"embed_tokens.weight": (16, 8)}),
        ("embed_tokens.weight [16, 8] in model.safetensors is no tensor of the model",),
    ),
    "a base model without the head that it needs": (
        lambda folder: put(folder / WHOLE, base_names(SHAPES)),
        ("lm_head.weight [16, 8] is missing",),
    ),
    "an index that is no JSON": (
        lambda folder: (as_shards(folder), (folder / INDEX).write_text("{")),
        ("model.safetensors.index.json: it cannot be read",),
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_folder_is_refused_with_all_that_is_wrong(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, said = SPOILT[name]
    code, words = checked(tmp_path, spoil)
    assert code == 2
    assert [part for part in said if part not in words] == [], words


def base_names(shapes: Shapes) -> Shapes:
    """As a base model without a head is saved."""
    return {name.removeprefix("model."): shape for name, shape in shapes.items() if name.startswith("model.")}


def tied_base(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    put(folder / WHOLE, base_names(SHAPES))


def in_a_cache(folder: Path) -> None:
    """The folder as a cache has it: a snapshot whose files are links to blobs."""
    as_shards(folder)
    home = folder.parent / "models--a--b"
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots" / "0f").mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(home / "blobs" / str(number))
        (home / "snapshots" / "0f" / path.name).symlink_to(f"../../blobs/{number}")
    folder.rmdir()
    folder.symlink_to(home / "snapshots" / "0f")


def linked_within(folder: Path) -> None:
    (folder / WHOLE).rename(folder / "real.safetensors")
    (folder / WHOLE).symlink_to("real.safetensors")


GOOD = {
    "one file": lambda folder: None,
    "shards": as_shards,
    "a base model": tied_base,
    "a cache": in_a_cache,
    "a link within": linked_within,
}


@pytest.mark.parametrize("spoil", GOOD.values(), ids=GOOD)
def test_a_whole_folder_is_taken(
    tmp_path: Path, spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked(tmp_path, spoil) == (0, "")


def test_a_tied_head_and_old_masks_may_be_stored_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def spoil(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
        changed(folder, **{f"{LAYER}self_attn.rotary_emb.inv_freq": (2,)})

    assert checked(tmp_path, spoil) == (0, "")


def test_a_field_beside_the_folder_must_leave_the_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, words = checked(tmp_path, lambda folder: None, "{from: weights, mlp_size: 16}")
    assert (code, words.count("of the model [16, 8]")) == (2, 2)


def test_a_folder_and_a_preset_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, words = checked(tmp_path, lambda folder: None, "{from: weights, preset: tiny}")
    assert code == 2
    assert "model.from: both preset and from came" in words


def begun(folder: Path) -> tuple[Path, str]:
    """A run that started from published weights and failed, with a checkpoint; its job."""
    weights = folder / "weights"
    weights.mkdir()
    stretched = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {
        **CONFIG,
        "attention_dropout": 0.1,
        "rope_scaling": {**stretched, "original_max_position_embeddings": 16},
    }
    (weights / "config.json").write_text(json.dumps(config))
    put(weights / WHOLE, SHAPES)
    text = JOB.replace("{preset: tiny}", "{from: weights, norm_eps: 1.0e-6}").replace("pp: 2", "pp: 1")
    job = job_file(folder, text)
    plan, path = plan_job(job, None).plan, run_folder(folder / "runs", "small", outcome=FAILED)
    (path / "plan.json").write_text(plan.to_json())
    as_saved(path / "checkpoints", plan, 2)
    return path, str(job)


@pytest.mark.parametrize("what", ["all", WHOLE, "config.json"])
def test_a_run_with_a_checkpoint_no_longer_needs_the_folder(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, job = begun(tmp_path)
    before = json.loads((path / "plan.json").read_text())
    (tmp_path / "weights" / what).unlink() if what != "all" else shutil.rmtree(tmp_path / "weights")
    again = partrain("launch", job, "--dry-run", "--json")
    assert again.code == 0, again.err
    assert plan_changes(before, json.loads(again.out)["plan"]) == ()
    assert partrain("launch", str(path / "plan.json"), "--dry-run").code == 0
    other = partrain("launch", job, "--dry-run", "--json", "--set", "model.norm_eps=1.0e-5")
    assert plan_changes(before, json.loads(other.out)["plan"]) == ("model.norm_eps: 1e-06 -> 1e-05",)
    assert partrain("check", job).code == 2
    for options in (["--new"], ["--set", "name=other"], ["--set", "run.dir=elsewhere"]):
        assert partrain("launch", job, "--dry-run", *options).code == 2
    assert partrain("launch", str(path / "plan.json"), "--dry-run", "--new").code == (
        2 if what != "config.json" else 0
    )
    shutil.rmtree(path / "checkpoints")
    assert partrain("launch", job, "--dry-run").code == 2
