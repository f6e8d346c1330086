"""A fix put into the job file: the values it changes and nothing else."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

from partrain.errors import Fault, Place, SpecError
from partrain.plan.setting import changed_job
from partrain.spec.edit import CannotEdit, edited
from partrain.spec.load import Reading, read_job_text


def applied(
    reading: Reading, changes: Mapping[str, Any], *, source: str, environ: Mapping[str, str]
) -> bytes:
    """The job file of `reading`, which has no overrides, with `changes`; all other bytes as they are.

    `source` names the file. Raises SpecError where the file's text does not allow it.
    """
    assert reading.job is not None
    mark = codecs.BOM_UTF8 if reading.given.startswith(codecs.BOM_UTF8) else b""
    try:
        data = mark + edited(reading.given.removeprefix(mark).decode(), changes).encode()
    except CannotEdit as error:
        raise _refusal(changes, source, str(error)) from None
    again = read_job_text(data, source=source, environ=environ)
    if again.faults or again.job != changed_job(reading.job, changes):
        raise _refusal(changes, source, "the text around them is read otherwise after the change")
    return data


def _refusal(changes: Mapping[str, Any], source: str, why: str) -> SpecError:
    values = "; ".join(f"{path}: {value}" for path, value in changes.items())
    message = f"it cannot be changed by itself: {why}"
    return SpecError([Fault("", message, fix=f"by hand, {values}", place=Place(source))])
