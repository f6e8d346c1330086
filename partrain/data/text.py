"""Text to tokens and back, of data whose tokens are bytes."""

from __future__ import annotations

import codecs
from pathlib import Path

from partrain.data.faults import data_error
from partrain.data.token_header import read_header
from partrain.errors import DataError, escaped
from partrain.spec.facts import DatasetFacts

BYTES = "bytes"
"""Name of the tokenizer, in the header of a token file, that makes a token of each byte."""
NUM_BYTES = 256


def text_to_tokens(text: str, data: DatasetFacts) -> tuple[int, ...]:
    """The tokens of `text` as `data` would have them.

    Raises DataError where they are not known to be bytes.
    """
    reason = _why_not_bytes(data)
    if reason:
        raise data_error(
            f"{escaped(data.source)}: {reason}: text cannot be made its tokens",
            allowed=f"data of bytes: builtin:python-source, or a header with tokenizer {BYTES}",
            fix='--token-ids "1 2 3" in place of the text',
        )
    # What a shell hands over that is no UTF-8 comes as surrogates; here it is bytes again.
    return tuple(text.encode("utf-8", "surrogateescape"))


def _why_not_bytes(data: DatasetFacts) -> str:
    """Why a token of `data` is not a byte; empty: it is one."""
    if data.source == "builtin:python-source":
        return ""
    if data.source == "synthetic":
        return "its tokens are random numbers"
    try:
        header = read_header(Path(data.source).with_suffix(".json"))
    except DataError as error:
        return f"what its tokens are is not known ({error.faults[0].message})"
    except ValueError as error:  # a name that no file can have
        return f"what its tokens are is not known ({error})"
    named = header.get("tokenizer")
    if named == BYTES or (named is None and header.get("vocab_size") == NUM_BYTES):
        return ""
    return (
        f"its tokens are of the tokenizer {str(named)[:60]!r}" if named else "its header names no tokenizer"
    )


class TextReader:
    """Tokens that are bytes to text, as they come; what is no UTF-8 is replaced by U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, *tokens: int) -> str:
        """What can be told with these tokens: a character may need more."""
        return self._decoder.decode(bytes(tokens))

    def end(self) -> str:
        """The character, replaced, of which something is missing; empty: none is."""
        return self._decoder.decode(b"", final=True)
