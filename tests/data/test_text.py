"""Which data are text, and what their tokens say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from partrain.data.text import TextReader, text_to_tokens
from partrain.errors import DataError
from partrain.spec.facts import DatasetFacts


def facts(source: str) -> DatasetFacts:
    return DatasetFacts(source=source, num_tokens=9, vocab_size=256)


def header(folder: Path, **keys: object) -> str:
    """A token file without its tokens."""
    known = {"format": "partrain-tokens", "version": 1, "dtype": "uint16", "num_tokens": 9, "vocab_size": 256}
    (folder / "corpus.json").write_text(json.dumps({**known, **keys}))
    return str(folder / "corpus.bin")


def test_text_is_its_bytes_in_utf_8():
    # U+00E9 is C3 A9 in UTF-8
    assert text_to_tokens("a\n\u00e9", facts("builtin:python-source")) == (0x61, 0x0A, 0xC3, 0xA9)


def test_bytes_that_a_shell_hands_over_are_those_bytes():
    assert text_to_tokens(os.fsdecode(b"a\xff"), facts("builtin:python-source")) == (0x61, 0xFF)


@pytest.mark.parametrize("keys", [{}, {"tokenizer": "bytes"}, {"tokenizer": "bytes", "vocab_size": 260}])
def test_a_token_file_of_bytes_is_text(tmp_path: Path, keys: dict[str, object]):
    assert text_to_tokens("hi", facts(header(tmp_path, **keys))) == (104, 105)


@pytest.mark.parametrize("keys", [{"tokenizer": "chars"}, {"vocab_size": 255}, {"tokenizer": 3}])
def test_a_token_file_of_anything_else_is_not(tmp_path: Path, keys: dict[str, object]):
    with pytest.raises(DataError, match="--token-ids"):
        text_to_tokens("hi", facts(header(tmp_path, **keys)))


@pytest.mark.parametrize("source", ["synthetic", "/nowhere/corpus.bin", "", "a\0b"])
def test_data_that_nothing_is_known_of_is_not_text(source: str):
    with pytest.raises(DataError, match="text cannot be made its tokens"):
        text_to_tokens("hi", facts(source))


def test_tokens_become_text_as_soon_as_a_character_is_whole():
    reader = TextReader()
    assert [reader.read(token) for token in "a\u20ac".encode()] == ["a", "", "", "\u20ac"]
    assert [reader.read(0xFF), reader.read(0xE2), reader.read(0x41)] == ["\ufffd", "", "\ufffdA"]
    assert (reader.read(0xE2, 0x82), reader.end()) == ("", "\ufffd")
