"""The run folder: the only place that spells the names of a run's files, and that writes them whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def job(self) -> Path:
        """The job file as the user gave it."""
        return self.path / "job.yaml"

    @property
    def plan(self) -> Path:
        """The decision: every value an integer or a name."""
        return self.path / "plan.json"

    @property
    def launch(self) -> Path:
        """Who started the run, when, as which process."""
        return self.path / "launch.json"

    @property
    def metrics(self) -> Path:
        """One record a step, appended by rank 0."""
        return self.path / "metrics.jsonl"

    @property
    def redone(self) -> Path:
        """Records of steps that were done again after a resume."""
        return self.path / "metrics.redone.jsonl"

    @property
    def notices(self) -> Path:
        """What the run has to say to its user, a line each, appended by rank 0."""
        return self.path / "notices.jsonl"

    @property
    def checkpoints(self) -> Path:
        """A folder a checkpoint."""
        return self.path / "checkpoints"

    @property
    def exported(self) -> Path:
        """The model of the last step as a folder that transformers loads; absent unless the job wants it."""
        return self.path / "hf"

    @property
    def stop(self) -> Path:
        """Once it is there, the run is saved and ends."""
        return self.path / "stop"

    @property
    def save(self) -> Path:
        """Once it is there, the run is saved and the file removed."""
        return self.path / "save"

    @property
    def attempts(self) -> Path:
        """What earlier launches of the run left, a folder each."""
        return self.path / "attempts"

    @property
    def tensorboard(self) -> Path:
        """What TensorBoard is pointed at."""
        return self.path / "tensorboard"

    @property
    def events(self) -> Path:
        """TensorBoard's event files, written from the same records; it shows the folder's name."""
        return self.tensorboard / self.path.name

    @property
    def logs(self) -> Path:
        """One log file a rank."""
        return self.path / "logs"

    @property
    def outcome(self) -> Path:
        """How the run ended; absent while it goes on."""
        return self.path / "outcome.json"

    def log(self, rank: int) -> Path:
        """All that `rank` printed."""
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def agent_log(self) -> Path:
        """What the launching side itself had to complain about; empty as a rule."""
        return self.logs / "agent.log"

    def failure(self, rank: int) -> Path:
        """Why `rank` ended, written by itself just before it did."""
        return self.logs / f"rank-{rank:05d}.failure.json"


OWNERS_ALONE = 0o600
"""Mode of a file that may hold a token or a key: the values of `launch.env` are in the plan."""


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` so that a reader sees all of it or the file as it was before; the umask cuts `mode`."""
    # Not mkstemp, whose files are their owner's alone: colleagues may read a run if the umask allows it.
    name = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(name, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
