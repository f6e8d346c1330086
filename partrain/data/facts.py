"""What the plan needs to know of a dataset, found without reading it and without numpy."""

from __future__ import annotations

from difflib import get_close_matches

from partrain.data import python_source
from partrain.data.faults import data_error
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
