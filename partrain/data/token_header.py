"""The JSON header of a token file: read with care, every fault reported.

    {"format": "partrain-tokens", "version": 1, "dtype": "uint16", "num_tokens": 1000000, "vocab_size": 50257}

`dtype` is `uint16` or `uint32`; every token is below `vocab_size`. `sha256` (of the binary, in hex) and
`tokenizer` (its name) may be added; they play no part in training.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from partrain.data.faults import KEY, data_error
from partrain.errors import Fault
from partrain.units import format_bytes

ITEM_BYTES = {"uint16": 2, "uint32": 4}
_LIMIT_BYTES = 2**20


class _Key(NamedTuple):
    is_allowed: Callable[[Any], bool]
    allowed: str
    optional: bool = False


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 1 <= value <= limit


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


_KEYS = {
    "format": _Key(lambda value: value == "partrain-tokens", '"partrain-tokens"'),
    "version": _Key(lambda value: type(value) is int and value == 1, "1"),
    "dtype": _Key(lambda value: isinstance(value, str) and value in ITEM_BYTES, '"uint16" or "uint32"'),
    "num_tokens": _Key(lambda value: _is_count(value, 2**60), "a whole number, 1 or more"),
    "vocab_size": _Key(lambda value: _is_count(value, 2**32), "a whole number from 1 to 2^32"),
    "sha256": _Key(_is_sha256, "64 hexadecimal digits, lower case", optional=True),
    "tokenizer": _Key(lambda value: isinstance(value, str), "a text", optional=True),
}


def read_header(path: Path) -> dict[str, Any]:
    """The keys and values of a header as they stand.

    Raises DataError where it is not a JSON object of reasonable size.
    """
    try:
        # a pipe would be waited for without end
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise data_error(f"{path} is not a regular file")
        with open(path, "rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        raise data_error(
            f"{path} does not exist; it has to say what the tokens in the .bin beside it are",
            allowed="{" + ", ".join(f'"{name}": {key.allowed}' for name, key in _KEYS.items()) + "}",
        ) from error
    except OSError as error:
        raise data_error(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > _LIMIT_BYTES:
        raise data_error(
            f"{path} is larger than {format_bytes(_LIMIT_BYTES)}: not the header of a token file"
        )
    try:
        found = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise data_error(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise data_error(f"{path} is not a JSON object", allowed='{"key": value, ...}')
    return found


def header_faults(path: Path, found: dict[str, Any]) -> list[Fault]:
    """Everything that is wrong with the keys and values of a header."""
    faults = []
    for name, key in _KEYS.items():
        if name not in found:
            if not key.optional:
                faults.append(Fault(KEY, f"{path}: {name} is missing", allowed=key.allowed))
        elif not key.is_allowed(found[name]):
            came = _shortened(json.dumps(found[name]))
            faults.append(Fault(KEY, f"{path}: {name} is {came}", allowed=key.allowed))
    for name in sorted(found.keys() - _KEYS.keys()):
        near = get_close_matches(name, _KEYS, n=1)
        fix = f"did you mean {near[0]}?" if near else ""
        message = f"{path}: unknown key {_shortened(json.dumps(name))}"
        faults.append(Fault(KEY, message, allowed=", ".join(_KEYS), fix=fix))
    return faults


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{_shortened(json.dumps(twice[0]))} is given twice")
    return dict(pairs)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
