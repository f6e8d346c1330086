"""Run folders made by hand, as the engine and the launcher leave them."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from pathlib import Path

from partrain.run.folder import RunFolder
from partrain.run.records import EvaluationRecord, Failure, Outcome, StepRecord, perplexity

STARTED = 1.7e9

TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 1, in <module>
RuntimeError: out of luck
"""


def record(step: int, *, loss: float = 2.5) -> StepRecord:
    """A step of half a second with 4096 tokens."""
    return StepRecord(
        step=step,
        loss=loss,
        lr=1e-3,
        grad_norm=0.5,
        step_s=0.5,
        tokens=4096 * step,
        tokens_per_s=8192.0,
        flops=1e9,
        mfu=None,
        peak_bytes=2**29,
        time=STARTED + step / 2,
    )


def evaluation(step: int, *, loss: float = 2.0) -> EvaluationRecord:
    """One of 64 sequences in two seconds."""
    return EvaluationRecord(step, loss, perplexity(loss), 64, 2.0, STARTED + step / 2)


FAILED = Outcome(
    "failed",
    5,
    "rank 2 (dp 0, pp 1, tp 0): out of luck",
    STARTED + 9,
    Failure(2, STARTED + 8, "error", "out of luck", TRACEBACK, step=3),
    (Failure(0, STARTED + 9, "peer", "lost its connection to another rank"),),
)


def run_folder(
    runs: Path, name: str, *, steps: int = 2, outcome: Outcome | None = None, started: float = STARTED
) -> Path:
    """A run of which `steps` of 10 are recorded, launched by a process that is no more."""
    folder = RunFolder(runs / name)
    folder.logs.mkdir(parents=True)
    launcher = {"pid": 1, "start": "never", "host": socket.gethostname(), "boot": "another"}
    folder.launch.write_text(json.dumps({**launcher, "started": started}))
    folder.plan.write_text(json.dumps({"name": name, "training": {"steps": 10}}))
    folder.metrics.write_text("".join(record(step + 1).to_json() + "\n" for step in range(steps)))
    if outcome is not None:
        folder.outcome.write_text(json.dumps(asdict(outcome)))
    return folder.path
