"""Token files found and refused: every fault has its words."""

import json
import os
from array import array
from pathlib import Path
from typing import Any

import pytest

from partrain.data.facts import find_facts
from partrain.errors import DataError, Fault
from partrain.spec.facts import DatasetFacts


def write_pair(folder: Path, tokens: list[int], *, name: str = "corpus", **changes: Any) -> Path:
    """A token file of uint16; a change of None leaves its key out."""
    path = folder / f"{name}.bin"
    path.write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
    header = {"format": "partrain-tokens", "version": 1, "dtype": "uint16"}
    header |= {"num_tokens": len(tokens), "vocab_size": 1000} | changes
    kept = {key: value for key, value in header.items() if value is not None}
    path.with_suffix(".json").write_text(json.dumps(kept))
    return path


def faults_of(source: object) -> tuple[Fault, ...]:
    with pytest.raises(DataError) as caught:
        find_facts(str(source))
    assert all(fault.path == "data.train" for fault in caught.value.faults)
    return caught.value.faults


def only_fault_of(source: object) -> Fault:
    (fault,) = faults_of(source)
    return fault


@pytest.mark.parametrize("named", ["corpus.bin", "corpus.json", ""])
def test_a_pair_is_found_by_either_file_or_its_folder(tmp_path: Path, named: str) -> None:
    path = write_pair(tmp_path, [1, 2, 3], sha256="0" * 64, tokenizer="gpt2")
    assert find_facts(str(tmp_path / named)) == DatasetFacts(source=str(path), num_tokens=3, vocab_size=1000)


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_pair(tmp_path, [1, 2])
    monkeypatch.chdir(tmp_path)
    assert find_facts("./corpus.bin").source == str(path)


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_pair(tmp_path, [1, 2])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_facts("~/corpus.bin").source == str(path)


def test_uint32_tokens_have_four_bytes(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [], dtype="uint32", num_tokens=3)
    path.write_bytes(array("I", [1, 2, 70000]).tobytes())
    assert find_facts(str(path)).num_tokens == 3


def test_a_header_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    header = write_pair(tmp_path, [1, 2]).with_suffix(".json")
    header.write_bytes(b"\xef\xbb\xbf" + header.read_bytes())
    assert find_facts(str(header)).num_tokens == 2


def test_the_program_of_the_documents_writes_a_token_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    text = (Path(__file__).parents[2] / "docs" / "data-format.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("to be or not to be")
    exec(program, {})
    assert find_facts("corpus.bin") == DatasetFacts(
        source=str(tmp_path / "corpus.bin"), num_tokens=18, vocab_size=256
    )


def test_synthetic_data_has_no_end_and_any_vocabulary() -> None:
    assert find_facts("synthetic") == DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)


def test_an_unknown_builtin_gets_the_nearest_name() -> None:
    assert only_fault_of("builtin:python-sorce").fix == "did you mean builtin:python-source?"


def test_a_missing_path_gets_the_nearest_name(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2])
    fault = only_fault_of(tmp_path / "corpsu.bin")
    assert fault.message == f"{tmp_path}/corpsu.bin does not exist"
    assert str(path) in fault.fix


def test_a_missing_folder_is_said_to_be_the_fault(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    fault = only_fault_of(tmp_path / "dataset" / "web" / "corpus.bin")
    assert fault.message.endswith(f"does not exist; the path ends at {tmp_path}")
    assert fault.fix == f"did you mean {tmp_path}/datasets?"


def test_a_binary_without_header_is_told_what_the_header_says(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2])
    path.with_suffix(".json").unlink()
    fault = only_fault_of(path)
    assert "corpus.json does not exist" in fault.message
    assert '"num_tokens": a whole number' in fault.allowed


def test_a_header_without_binary_is_refused(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2])
    path.unlink()
    assert only_fault_of(path.with_suffix(".json")).message == f"{path} does not exist"


def test_a_folder_without_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert only_fault_of(tmp_path).message == f"the folder {tmp_path} holds no token file (.bin)"


def test_a_folder_with_several_token_files_names_them(tmp_path: Path) -> None:
    write_pair(tmp_path, [1, 2], name="b")
    write_pair(tmp_path, [1, 2], name="a")
    fault = only_fault_of(tmp_path)
    assert fault.message.endswith("holds 2 token files: a.bin, b.bin")
    assert fault.fix == f"name one, as {tmp_path}/a.bin"


def test_another_kind_of_file_is_no_token_file(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("to be or not to be")
    assert only_fault_of(tmp_path / "corpus.txt").message.endswith("corpus.txt is not a token file")


@pytest.mark.parametrize("name", ["corpus.bin", "corpus.json"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    write_pair(tmp_path, [1, 2])
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert only_fault_of(tmp_path).message == f"{tmp_path}/{name} is not a regular file"


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    assert "File name too long" in only_fault_of(tmp_path / ("x" * 300)).message
    assert "null" in only_fault_of("a\0b").message
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in only_fault_of(tmp_path / "loop").message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_refused(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2])
    path.chmod(0)
    assert only_fault_of(path).message == f"{path} cannot be read: Permission denied"


def test_a_truncated_file_says_how_many_tokens_are_missing(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2, 3], num_tokens=10)
    fault = only_fault_of(path)
    assert fault.message == f"{path} has 6 bytes, 10 tokens of 2 bytes have 20: 7 tokens short"


def test_half_a_token_is_missing_too(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2, 3])
    os.truncate(path, 5)
    assert only_fault_of(path).message.endswith("0.5 tokens short")


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2, 3], num_tokens=2)
    fault = only_fault_of(path)
    assert fault.message.endswith("1 tokens too many")
    assert fault.fix == "correct num_tokens or dtype in its .json"


BAD_VALUES = [
    ("format", "megatron", '"partrain-tokens"'),
    ("version", 2, "1"),
    ("version", True, "1"),
    ("dtype", "int64", '"uint16" or "uint32"'),
    ("dtype", ["uint16"], '"uint16" or "uint32"'),
    ("num_tokens", 0, "a whole number, 1 or more"),
    ("num_tokens", 3.0, "a whole number, 1 or more"),
    ("num_tokens", "3", "a whole number, 1 or more"),
    ("vocab_size", -1, "a whole number from 1 to 2^32"),
    ("vocab_size", 2**32 + 1, "a whole number from 1 to 2^32"),
    ("sha256", "abc", "64 hexadecimal digits, lower case"),
    ("tokenizer", 7, "a text"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), BAD_VALUES)
def test_a_bad_value_of_the_header_is_shown(tmp_path: Path, key: str, value: object, allowed: str) -> None:
    path = write_pair(tmp_path, [1, 2, 3], **{key: value})
    assert only_fault_of(path) == Fault(
        "data.train", f"{tmp_path}/corpus.json: {key} is {json.dumps(value)}", allowed=allowed
    )


@pytest.mark.parametrize("key", ["format", "version", "dtype", "num_tokens", "vocab_size"])
def test_a_missing_key_of_the_header_is_named(tmp_path: Path, key: str) -> None:
    path = write_pair(tmp_path, [1, 2, 3], **{key: None})
    assert only_fault_of(path).message == f"{tmp_path}/corpus.json: {key} is missing"


def test_all_faults_of_header_and_size_come_together(tmp_path: Path) -> None:
    path = write_pair(tmp_path, [1, 2, 3], num_tokens=4, version=9, vocab_size=None, vocabsize=7)
    version, vocabulary, unknown, size = faults_of(path)
    assert "version is 9" in version.message
    assert "vocab_size is missing" in vocabulary.message
    assert unknown.fix == "did you mean vocab_size?"
    assert "1 tokens short" in size.message


BAD_JSON = [
    (b"", "is not JSON: Expecting value"),
    (b"{'format': 1}", "is not JSON: Expecting property name"),
    (b"\xff\xfe{}", "is not JSON: 'utf-8' codec"),
    (b"[1, 2]", "is not a JSON object"),
    (b'{"version": 1, "version": 2}', 'is not JSON: "version" is given twice'),
    (b"[" * 100_000, "is not JSON: maximum recursion depth"),
    (b" " * (2**20 + 1), "is larger than 1.0 MiB"),
]


@pytest.mark.parametrize(("raw", "message"), BAD_JSON)
def test_a_broken_header_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    header = write_pair(tmp_path, [1, 2]).with_suffix(".json")
    header.write_bytes(raw)
    assert only_fault_of(header).message.startswith(f"{header} {message}")
