"""A program in the place of the worker: each rank behaves as its arguments say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
STEPS = 3


def record(*steps: int) -> None:
    if RANK != 0:
        return
    fixed = {"loss": 2.5, "lr": 1e-3, "grad_norm": 1.0, "step_s": 0.1, "tokens": 128, "tokens_per_s": 1e3}
    more = {"flops": 1e9, "mfu": None, "peak_bytes": 2**20, "time": time.time()}
    with open(FOLDER / "metrics.jsonl", "a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, **fixed, **more}) + "\n")


def say(kind: str, message: str) -> None:
    word = {"rank": RANK, "time": time.time(), "kind": kind, "message": message, "traceback": f"at {message}"}
    (FOLDER / "logs" / f"rank-{RANK:05d}.failure.json").write_text(json.dumps(word))


def wait() -> None:
    while True:
        time.sleep(60)


def train() -> None:
    print(f"rank {RANK} trains")
    record(*range(1, STEPS + 1))


def work() -> None:
    record(1)
    wait()


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work()


def family() -> None:
    """Children, one of them in a session of its own."""
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    (FOLDER / f"family-{RANK}.json").write_text(json.dumps([child.pid for child in children]))
    work()


def error() -> None:
    time.sleep(0.2)  # the peers leave first
    say("error", "ValueError: the loss is NaN")
    sys.exit(1)


def peer() -> None:
    say("peer", "ConnectionError: closed by peer")
    sys.exit(75)


def crash() -> None:
    print("something is wrong here", file=sys.stderr)
    sys.exit(3)


def leave() -> None:
    """After rank 0's first record."""
    while not (FOLDER / "metrics.jsonl").exists():
        time.sleep(0.02)


def saver() -> None:
    """Saves and leaves once it is told to stop."""
    record(1)
    while not (FOLDER / "stop").exists():
        time.sleep(0.02)
    if RANK == 0:
        (FOLDER / "checkpoints" / "step-00000001").mkdir(parents=True)


def idle() -> None:
    """All was done by an earlier launch."""


def linger() -> None:
    record(*range(1, STEPS + 1))
    wait()


def evaluate() -> None:
    """The last evaluation takes longer than ranks may take to end."""
    record(*range(1, STEPS + 1))
    time.sleep(1.0)
    fixed = {"validation_loss": 0.0, "perplexity": 1.0, "num_sequences": 4, "evaluation_s": 1.0}
    if RANK == 0:
        with open(FOLDER / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": STEPS, **fixed, "time": time.time()}) + "\n")


def chatter() -> None:
    """More than the pipes to the launcher hold."""
    record(*range(1, 5501))


def environment() -> None:
    (FOLDER / f"environment-{RANK}.json").write_text(json.dumps(dict(os.environ)))
    train()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
