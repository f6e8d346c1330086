"""How the faults of a dataset are raised."""

from __future__ import annotations

from partrain.errors import DataError, Fault

KEY = "data.train"
"""Key of the job that names the dataset; whoever knows the job fills in the place."""

VALIDATION_KEY = "data.validation"
"""Key of the dataset that is evaluated on."""


def data_error(message: str, *, allowed: str = "", fix: str = "") -> DataError:
    """An error with one fault, to raise."""
    return DataError([Fault(KEY, message, allowed=allowed, fix=fix)])
