"""Which files of a published folder are copied into an export, and which are left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partrain.checkpoint import tokenizer
from partrain.checkpoint.tokenizer import NAMES, copy_tokenizer


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One with every file that is copied, and what is not; and an empty one."""
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    for name in (*NAMES, "tokenization_own.py", "modeling_own.py", "config.json", "training_args.bin"):
        (source / name).write_bytes(name.encode())
    return source, target


def test_the_tokenizers_files_are_copied_and_no_code(folders: tuple[Path, Path]) -> None:
    source, target = folders
    sizes, notes = copy_tokenizer(source, target)
    assert notes == ()
    assert sizes == {name: len(name) for name in NAMES}
    assert {path.name: path.read_bytes().decode() for path in target.iterdir()} == {n: n for n in NAMES}


def test_what_leads_out_or_is_no_file_or_too_large_is_left_and_told(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    (source.parent / "key").write_text("secret")
    for name in ("vocab.json", "merges.txt", "vocab.txt", "spiece.model"):
        (source / name).unlink()
    (source / "vocab.json").symlink_to("../key")
    (source / "merges.txt").mkdir()
    os.mkfifo(source / "vocab.txt")
    (source / "spiece.model").symlink_to("tokenizer.model")
    (source / "tokenizer.json").write_bytes(bytes(101))
    (source / "chat_template.jinja").write_bytes(bytes(100))
    monkeypatch.setattr(tokenizer, "MAX_BYTES", 100)
    sizes, notes = copy_tokenizer(source, target)
    left = {"vocab.json", "merges.txt", "vocab.txt", "tokenizer.json"}
    assert set(sizes) == {path.name for path in target.iterdir()} == set(NAMES) - left
    assert sizes["chat_template.jinja"] == 100
    assert (target / "spiece.model").read_bytes() == b"tokenizer.model"
    assert not (target / "spiece.model").is_symlink()
    assert notes == (
        f"without tokenizer.json of {source}: it has 101 B, 100 B at most are copied",
        f"without vocab.json of {source}: a link out of the folder, to {source.parent / 'key'}",
        f"without vocab.txt of {source}: not a file",
        f"without merges.txt of {source}: not a file",
    )


def test_a_snapshot_of_a_cache_gives_its_blobs(folders: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = folders
    home = tmp_path / "models--a--b"
    (home / "snapshots").mkdir(parents=True)
    (home / "blobs").mkdir()
    source = source.rename(home / "snapshots" / "0f")
    (source / "merges.txt").rename(home / "blobs" / "ab12")
    (source / "merges.txt").symlink_to("../../blobs/ab12")
    sizes, notes = copy_tokenizer(source, target)
    assert (len(sizes), notes) == (len(NAMES), ())
    assert (target / "merges.txt").read_text() == "merges.txt"


def test_a_folder_that_is_gone_is_told(folders: tuple[Path, Path]) -> None:
    source, target = folders
    gone = source / "gone"
    said = f"without the tokenizer's files: {gone}, which training started from, is gone"
    assert copy_tokenizer(gone, target) == ({}, (said,))
