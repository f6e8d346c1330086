"""The export at the end of a run, and what is told of it: a done run stays so whatever it comes to."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from partrain.errors import PartrainError, RunError
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.run.notices import Notices
from partrain.run.records import Outcome


@dataclass(frozen=True)
class Exported:
    """What became of an export."""

    folder: Path
    command: tuple[str, ...]
    """Words after `partrain` that repeat it."""
    files: Mapping[str, int] = field(default_factory=dict)
    """Name and size in bytes of each."""
    notes: tuple[str, ...] = ()
    """What is not in it that might be."""
    fault: str = ""
    """Why it failed; empty: it did not."""
    hint: str = ""

    def as_object(self) -> dict[str, Any]:
        """For a document of JSON."""
        if self.fault:
            command = shlex.join(("partrain", *self.command))
            return {"path": str(self.folder), "error": self.fault, "fix": self.hint, "command": command}
        size = sum(self.files.values())
        told = {"size_bytes": size, "files": dict(self.files), "notes": list(self.notes)}
        return {"path": str(self.folder), **told}


def wants_export(plan: Plan, outcome: Outcome) -> bool:
    """Whether the run's model is to be exported now."""
    return plan.checkpoint.export != "none" and outcome.state == "done"


def exported_at_end(plan: Plan, folder: RunFolder, outcome: Outcome) -> Exported | None:
    """Export the model of a run that is done, if its job wants that; None: it does not."""
    from partrain.launch.export import export_run

    if not wants_export(plan, outcome):
        return None
    command = ("checkpoint", "export", str(folder.path), str(folder.exported))
    notices = Notices(folder.notices)
    try:
        with signals_as_faults():
            written = export_run(plan, folder)
    except PartrainError as error:
        in_a_line = " ".join(error.message.split())
        notices.add(f"the export failed: {in_a_line}", is_grave=True)
        return Exported(folder.exported, command, fault=error.message, hint=error.hint)
    for said in (f"exported to {folder.exported.name}", *written.notes):
        notices.add(said)
    return Exported(folder.exported, command, written.files, written.notes)


@contextmanager
def signals_as_faults() -> Iterator[None]:
    """An export that is interrupted has failed, and clears away what it began."""

    def refuse(number: int, frame: FrameType | None) -> None:
        raise RunError(f"interrupted by {signal.Signals(number).name}")

    before = {number: signal.signal(number, refuse) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
