"""What a process that exports a checkpoint is asked to do: JSON on its standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass

from partrain.spec.section import Count
from partrain.spec.training import Precision
from partrain.spec.values import plain, read


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Which files are written, from what."""

    checkpoint: str
    """Folder of a whole checkpoint."""
    folder: str
    """Where the files go: an empty folder."""
    precision: Precision
    """Of the tensors."""
    shard_bytes: Count
    """Data of a file at most, unless one tensor has more."""

    def to_json(self) -> str:
        """For the process's standard input."""
        return json.dumps(plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ExportRequest:
        """What `to_json` wrote. Raises ValueError on anything else."""
        return read(cls, json.loads(text))
