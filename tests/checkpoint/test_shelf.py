"""A checkpoint is whole, or it is found not to be, with what is wrong, and the one before it is taken."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from partrain.checkpoint.manifest import Slice
from partrain.checkpoint.reading import manifest_from
from partrain.checkpoint.safetensors import entries, sha256
from partrain.checkpoint.shelf import (
    MANIFEST,
    begin,
    checkpoints,
    damage,
    expired,
    newest_whole,
    read_checkpoint,
    remove_expired,
)
from partrain.errors import CheckpointError
from tests.checkpoint.made import make

FILES = ("rank-00000.safetensors", "rank-00001.safetensors", MANIFEST)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path) -> None:
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def remove(path: Path) -> None:
    path.unlink()


def found_damage(path: Path) -> str:
    """All that is wrong with a checkpoint, its bytes read too."""
    try:
        return "; ".join(damage(path, read_checkpoint(path)))
    except CheckpointError as error:
        return error.message


@pytest.mark.parametrize("harm", [cut, empty, flip, make_folder, make_link, make_pipe, remove])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_and_the_file_named(harm: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    make(tmp_path, 10)
    path = make(tmp_path, 20)
    assert found_damage(path) == ""
    harm(path / name)
    said = found_damage(path)
    assert name in said or (name == MANIFEST and "the manifest" in said)
    found, skipped = newest_whole(tmp_path, without=[path.name] if harm is flip else [])
    assert found is not None
    assert found.manifest.step == 10
    assert harm is flip or [item.path for item in skipped] == [path]


def test_a_reader_takes_the_newest_whatever_latest_says(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20)
    assert (tmp_path / "latest").read_text() == "step-00000020\n"
    (tmp_path / "latest").unlink()
    found, skipped = newest_whole(tmp_path)
    assert found is not None
    assert (found.manifest.step, skipped) == (20, ())


def test_what_was_not_finished_is_no_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    begin(tmp_path, 30)
    (tmp_path / ".step-00000030.saving" / "rank-00000.safetensors").write_bytes(b"half")
    assert newest_whole(tmp_path) == (None, ())
    make(tmp_path, 40)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["latest", "step-00000040"]


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path: Path) -> None:
    path = make(tmp_path, 10)
    path.rename(tmp_path / "step-00000099")
    _, (skipped,) = newest_whole(tmp_path)
    assert "its manifest is of step 10" in skipped.reason


def test_the_newest_stay_and_every_so_many_steps(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    cut(tmp_path / "step-00000030" / FILES[0])  # not whole: it counts for nothing and is left to be looked at
    gone = remove_expired(tmp_path, keep=1, keep_every=20)
    assert [path.name for path in gone] == ["step-00000010"]
    assert [path.name[-2:] for path in checkpoints(tmp_path)] == ["40", "30", "20"]
    assert expired([1, 2, 3], keep=5, keep_every=None) == ()


def test_the_files_are_safetensors_that_others_read(tmp_path: Path) -> None:
    path = make(tmp_path, 10)
    theirs = load_file(path / FILES[0])
    assert {name: tensor.shape for name, tensor in theirs.items()} == {
        name: entry.shape for name, entry in entries(path / FILES[0]).items()
    }
    assert theirs["matrix/exp_avg/0/2"].tolist() == [8, 9, 10, 11]


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    file = make(tmp_path, 10) / FILES[1]
    told = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True)
    assert sha256(file) == told.stdout.split()[0]


def signed(path: Path, change: Callable[[dict], object]) -> bytes:  # type: ignore[type-arg]
    """The manifest of a checkpoint changed by someone who can make its checksum right."""
    import hashlib

    value = json.loads((path / MANIFEST).read_text())
    change(value)
    value["sha256"] = "0" * 64
    text = json.dumps(value)
    return text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1).encode()


def box(value: dict) -> dict:  # type: ignore[type-arg]
    return value["weights"][0]["boxes"][0]  # type: ignore[no-any-return]


HOSTILE: dict[str, tuple[Callable[[dict], object], str]] = {  # type: ignore[type-arg]
    "a name that leads out": (
        lambda v: v["files"][0].update(name="../../etc/passwd.safetensors"),
        "no name of a file",
    ),
    "an absolute name": (lambda v: v["files"][0].update(name="/etc/x.safetensors"), "no name of a file"),
    "a file twice": (lambda v: v["files"].append(v["files"][0]), "a name comes twice"),
    "a pickle's name": (lambda v: v["files"][0].update(name="rank.pt"), "no name of a file"),
    "bytes beyond the file": (lambda v: box(v).update(offsets=[10**9, 0]), "which has"),
    "a negative offset": (lambda v: box(v).update(offsets=[-8, 0]), "cannot be"),
    "a file not listed": (lambda v: box(v).update(files=[9, 0]), "not listed"),
    "an element missing": (lambda v: box(v).update(cuts=[0, 2, 5]), "do not fill it"),
    "an element twice": (lambda v: box(v).update(cuts=[0, 6, 6]), "overlap"),
    "a box missing": (lambda v: v["weights"][0]["boxes"].pop(), "each element once"),
    "a box twice": (lambda v: v["weights"][0]["boxes"].append(box(v)), "each element once"),
    "a box beyond the weight": (lambda v: box(v).update(box=[[0, 9], [0, 3]]), "not in its shape"),
    "a weight twice": (lambda v: v["weights"].append(v["weights"][0]), "a name comes twice"),
    "an endless shape": (lambda v: v["weights"][0].update(shape=[10**30, 3]), "each element once"),
    "no shape": (lambda v: v["weights"][0].update(shape="4x3"), "not a list"),
    "an unknown kind": (lambda v: v["weights"][0].update(states={"weight": "PICKLE"}), "no states"),
    "a number as text": (lambda v: v.update(step="7"), "no whole number"),
    "a number missing": (lambda v: v.pop("samples"), "'samples' is missing"),
    "no time": (lambda v: v.update(created=1e300), "no time"),
    "another format": (lambda v: v.update(format=2), "format 2"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(name: str, tmp_path: Path) -> None:
    change, said = HOSTILE[name]
    path = make(tmp_path, 10)
    manifest_from(signed(path, lambda value: None))  # what only differs in its spelling is read
    with pytest.raises(CheckpointError, match=said):
        manifest_from(signed(path, change))


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, 10)
    text = (path / MANIFEST).read_text().replace('"step":10', '"step":10,"step":10')
    with pytest.raises(CheckpointError, match="twice"):
        manifest_from(text.encode())


@pytest.mark.parametrize("data", [pickle.dumps({"weight": [1.0]}), b"PK\x03\x04" + bytes(60), b"", b"{}"])
def test_a_file_that_is_not_safetensors_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "rank-00000.safetensors"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="pickle" if len(data) > 10 else "not a safetensors file"):
        entries(file)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}',
        '{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2]}}',
        "[" * 5000,
    ],
)
def test_a_hostile_header_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(8))
    with pytest.raises(CheckpointError):
        entries(file)


def test_a_gap_between_ranks_is_found_before_there_is_a_checkpoint(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.checkpoint.made import HALVES, manifest, share

    shares = [share(begin(tmp_path, 10), 0)]
    weight = shares[0].weights["matrix"]
    first, second = weight.slices
    for slices in ((first,), (second,), (first, first, second), (first, Slice(HALVES[0], 3, 6, "", 0))):
        broken = replace(shares[0], weights={"matrix": replace(weight, slices=slices)})
        with pytest.raises(CheckpointError, match="matrix"):
            manifest([broken], 10)
