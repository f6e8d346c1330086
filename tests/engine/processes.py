"""Starts worlds of processes for cases, a fresh one after 30: engines leave threads and files behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.engine.plans import Case, plan_of

CASES_A_WORLD = 30
LIMIT_S = 600
Process = subprocess.Popen[bytes]


class Found(NamedTuple):
    """What a case came to."""

    steps: list[tuple[float, float]]
    """Loss and gradient norm."""
    evaluated: list[float]
    """Found of the evaluations."""


def run_cases(cases: Sequence[Case], folder: Path) -> dict[Case, Found]:
    """What each case came to."""
    results: dict[Case, Found] = {}
    for size in sorted({case.world_size for case in cases}):
        same = [case for case in cases if case.world_size == size]
        for start in range(0, len(same), CASES_A_WORLD):
            some = same[start : start + CASES_A_WORLD]
            results.update(zip(some, _run_world(some, size, folder / f"{size}-{start}"), strict=True))
    return results


def _run_world(cases: Sequence[Case], size: int, folder: Path) -> list[Found]:
    work = [{"plan": plan_of(c).to_json(), "steps": c.steps, "sabotage": c.sabotage} for c in cases]
    results = run_world("tests.engine.world", work, size, folder)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return [Found([(a, b) for a, b in line["steps"]], line["evaluated"]) for line in lines]


def run_world(module: str, work: Sequence[dict[str, Any]], size: int, folder: Path) -> Path:
    """`module` on `size` ranks with `work`; the file with its results."""
    folder.mkdir()
    plans, results = folder / "plans.json", folder / "results.jsonl"
    plans.write_text(json.dumps(work))
    with world(module, size, (str(plans), str(results)), folder) as ranks:
        wait_for(ranks, folder)
    return results


@contextmanager
def world(module: str, size: int, arguments: Sequence[str], folder: Path) -> Iterator[list[Process]]:
    """The ranks of a world that run `module`, logging into `folder`; none is left after the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    argv = [sys.executable, "-m", module, *arguments]
    started: list[Process] = []
    try:
        for rank in range(size):
            with open(folder / f"rank-{rank}.log", "w") as log:
                env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for(ranks: Sequence[Process], folder: Path) -> None:
    """Until all have ended, without a fault."""
    codes = [process.wait(timeout=LIMIT_S) for process in ranks]
    logs = (folder / f"rank-{rank}.log" for rank in range(len(ranks)))
    assert not any(codes), "\n".join(log.read_text()[-3000:] for log in logs)
