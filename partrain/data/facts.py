"""What the plan needs to know of a dataset, found without reading it and without numpy."""

from __future__ import annotations

import os
from dataclasses import replace
from difflib import get_close_matches

from partrain.data import python_source
from partrain.data.faults import VALIDATION_KEY, data_error
from partrain.errors import DataError
from partrain.spec.data import BUILTIN
from partrain.spec.facts import DatasetFacts


def find_facts(source: str) -> DatasetFacts:
    """Tokens and vocabulary of the dataset that `data.train` names.

    Raises DataError with every fault that can be seen from names, sizes and header.
    """
    if source == "synthetic":
        return DatasetFacts(source=source, num_tokens=None, vocab_size=None)
    if source == "builtin:python-source":
        num_bytes = sum(file.num_bytes for file in python_source.source_files())
        return DatasetFacts(source=source, num_tokens=num_bytes, vocab_size=python_source.VOCAB_SIZE)
    if source.startswith("builtin:"):
        near = get_close_matches(source, BUILTIN, n=1)
        raise data_error(
            f"{source} is not a built-in dataset",
            allowed=" or ".join(BUILTIN),
            fix=f"did you mean {near[0]}?" if near else "",
        )
    from partrain.data.token_file import find_token_file  # only these jobs need it, and every command waits

    found = find_token_file(source)
    return DatasetFacts(source=str(found.path), num_tokens=found.num_tokens, vocab_size=found.vocab_size)


def find_validation_facts(source: str, train: DatasetFacts | None) -> DatasetFacts:
    """Tokens and vocabulary of the token file that `data.validation` names.

    The training data's own facts, `train`, where it is the same file under another name. Raises DataError as
    `find_facts` does.
    """
    from partrain.data.token_file import ALLOWED, NAMES, find_token_file

    names = ", ".join(("a share of the training data (1% or 0.01)", *NAMES))
    try:
        if source in BUILTIN or source.startswith("builtin:"):
            raise data_error(f"{source} is for training alone", allowed=names, fix="validation: 1%")
        found = find_token_file(source)
    except DataError as error:
        faults = (replace(fault, path=VALIDATION_KEY) for fault in error.faults)
        raise DataError([replace(f, allowed=names) if f.allowed == ALLOWED else f for f in faults]) from error
    facts = DatasetFacts(source=str(found.path), num_tokens=found.num_tokens, vocab_size=found.vocab_size)
    return train if train is not None and _is_same_file(facts.source, train.source) else facts


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # a built-in source
        return False
