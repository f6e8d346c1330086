"""Where samples come from: token files (memory-mapped), the standard library's text, random tokens."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from partrain.data import python_source
from partrain.data.faults import data_error
from partrain.data.token_file import find_token_file
from partrain.plan.plan import Plan
from partrain.spec.facts import DatasetFacts, num_windows

Tokens = NDArray[np.int64]


class TokenSource(Protocol):
    """Samples by their index."""

    @property
    def seed(self) -> int:
        """Decides the order of the samples."""

    @property
    def num_samples(self) -> int | None:
        """Samples to train on, the first of all; None: without end."""

    def sample(self, index: int) -> Tokens:
        """Sample `index`, those held back from training included: sequence_length + 1 tokens.

        Raises DataError when the data cannot be read or a token is not in the vocabulary.
        """


@dataclass(frozen=True)
class SyntheticSource:
    """Tokens drawn uniformly from the vocabulary by (seed, index): the same on every rank and machine."""

    sequence_length: int
    vocab_size: int
    seed: int

    @property
    def num_samples(self) -> None:
        """Without end."""

    def sample(self, index: int) -> Tokens:
        """Sample `index`, from a stream of random numbers of its own."""
        stream = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, index))))
        return stream.integers(self.vocab_size, size=self.sequence_length + 1, dtype=np.int64)


@dataclass(frozen=True)
class ArraySource:
    """A dataset that lies in memory or in a mapped file as one array of tokens."""

    name: str
    """File or builtin, as errors name it."""
    tokens: NDArray[np.unsignedinteger]
    vocab_size: int
    """Every token must be below this."""
    sequence_length: int
    seed: int
    mapping: mmap.mmap | None = None
    """The file behind `tokens`."""
    end: int | None = None
    """The sample before which training ends: those from there on are held back; None: it uses all."""

    @property
    def num_samples(self) -> int:
        """Samples to train on; the tokens after the last full one are left out."""
        found = num_windows(self.tokens.size, sequence_length=self.sequence_length)
        return found if self.end is None else min(found, self.end)

    def sample(self, index: int) -> Tokens:
        """Sample `index`: the window that starts at token index * sequence_length."""
        start = index * self.sequence_length
        return self.checked(start, start + self.sequence_length + 1).astype(np.int64)

    def checked(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens from `start` to `stop`, as they are stored.

        Raises DataError when the file was cut short or a token is not in the vocabulary.
        """
        self._check_size()
        tokens = self.tokens[start:stop]
        # a stored type that cannot hold a wrong token needs no look
        if np.iinfo(tokens.dtype).max < self.vocab_size or int(tokens.max()) < self.vocab_size:
            return tokens
        index = start + int(np.argmax(tokens >= self.vocab_size))
        raise data_error(
            f"{self.name}: token {int(self.tokens[index])} at index {index} "
            f"(byte {index * tokens.itemsize}) is outside the vocabulary",
            allowed=f"0 to {self.vocab_size - 1}",
            fix="write the file again with the tokenizer and dtype that its .json names",
        )

    def _check_size(self) -> None:
        """Touching a mapped page beyond the end of a file kills the process: look before."""
        if self.mapping is None:
            return
        try:
            num_bytes = self.mapping.size()
        except OSError as error:
            raise data_error(f"{self.name} cannot be read any more: {error.strerror}") from error
        if num_bytes < self.tokens.nbytes:
            missing = (self.tokens.nbytes - num_bytes) / self.tokens.itemsize
            raise data_error(f"{self.name} was cut short while it was in use: {missing:.10g} tokens are gone")


def open_source(
    facts: DatasetFacts, *, sequence_length: int, vocab_size: int, seed: int, end: int | None = None
) -> TokenSource:
    """The dataset that the plan was made for; `vocab_size` is the model's, training ends before sample `end`.

    Raises DataError when it is not what the plan knew, has too few tokens for one sequence, or a
    vocabulary larger than the model's.
    """
    if facts.source == "synthetic":
        return SyntheticSource(sequence_length, vocab_size, seed)
    if facts.source == "builtin:python-source":
        tokens, mapping = np.frombuffer(python_source.read_bytes(), np.uint8), None
        limit = python_source.VOCAB_SIZE
    else:
        file = find_token_file(facts.source)
        mapping, limit = _mapped(file.path), file.vocab_size
        tokens = np.frombuffer(mapping, np.dtype(file.dtype).newbyteorder("<"), file.num_tokens)
    if tokens.size != facts.num_tokens:
        raise data_error(
            f"{facts.source} had {facts.num_tokens} tokens when the plan was made and has {tokens.size} now"
        )
    if limit > vocab_size:
        raise data_error(f"{facts.source} has a vocabulary of {limit}, the model one of {vocab_size}")
    source = ArraySource(facts.source, tokens, limit, sequence_length, seed, mapping, end)
    if not source.num_samples:
        raise data_error(
            f"{facts.source} has {tokens.size} tokens, a sequence of {sequence_length} "
            f"needs {sequence_length + 1}",
            fix=f"training.sequence_length: {tokens.size - 1}" if tokens.size > 1 else "",
        )
    return source


def _mapped(path: Path) -> mmap.mmap:
    """A read-only mapping of the whole file."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise data_error(f"{path} cannot be mapped: {error}") from error


@dataclass(frozen=True)
class Sources:
    """What a plan reads."""

    train: TokenSource
    validation: TokenSource | None
    """The same object as `train` where the set is a share of it; None: nothing is evaluated."""

    @property
    def all(self) -> tuple[TokenSource, ...]:
        """Each source once."""
        apart = self.validation is not None and self.validation is not self.train
        return (self.train, self.validation) if apart else (self.train,)  # type: ignore[return-value]


def open_sources(plan: Plan) -> Sources:
    """The datasets of `plan`. Raises as `open_source` does."""
    opened = partial(
        open_source,
        sequence_length=plan.training.sequence_length,
        vocab_size=plan.model.vocab_size,
        seed=plan.training.seed,
    )
    train, wish = opened(plan.data, end=plan.end_of_training_data), plan.evaluation
    if wish is None:
        return Sources(train, None)
    return Sources(train, train if wish.data == plan.data else opened(wish.data))
