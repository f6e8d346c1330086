"""How long `partrain check JOB` takes, over the import of what it is built on: typer, pydantic and yaml.

    python bench/import_time.py [--pairs 20] [--job jobs/demo.yaml]

Two yardsticks. `bare` names the three packages, and no more: pydantic and typer put off most of their own
imports until the first model and the first argument. `in use` is the least that a program with one model and
one argument loads of them; what is above it is partrain's own.

Each round runs the three programs one right after the other, so that a busy machine slows all, in an order
that turns. Printed are the median of the rounds' ratios, the middle half, and all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BARE = "import typer, pydantic, yaml"
IN_USE = """\
import sys, typer, yaml
from pydantic import BaseModel
class Job(BaseModel):
    steps: int
def check(job: str) -> None:
    Job.model_validate(yaml.safe_load("steps: 1"))
sys.argv = ["check", "job.yaml"]
typer.run(check)
"""
CHECK = "import sys; sys.argv = ['partrain', 'check', {job!r}]; from partrain.cli.main import run; run()"
LIMIT = 1.6


def seconds(program: str) -> float:
    """Wall-clock seconds of a Python program that must succeed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    start = time.perf_counter()
    subprocess.run(
        (sys.executable, "-c", program),
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return time.perf_counter() - start


def measure(programs: dict[str, str], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each program in each round, after one run of each that fills the caches."""
    for program in programs.values():
        seconds(program)
    found: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    for number in range(num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(seconds(programs[name]))
    return found


def report(times: dict[str, list[float]], yardstick: str) -> None:
    """Print the ratio of `check` to a yardstick, and whether it is within the limit."""
    ratios = sorted(full / base for full, base in zip(times["check"], times[yardstick], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    verdict = "within" if middle <= LIMIT else "above"
    spread = f"middle half {low:.2f} to {high:.2f}, all {ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"check / {yardstick:7} {middle:6.2f}  {verdict} {LIMIT}; {len(ratios)} pairs, {spread}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--job", default=str(ROOT / "jobs" / "demo.yaml"))
    options = parser.parse_args()
    programs = {"bare": BARE, "in use": IN_USE, "check": CHECK.format(job=options.job)}
    times = measure(programs, options.pairs)
    for name, found in times.items():
        print(f"{name:15} {statistics.median(found) * 1e3:6.1f} ms  fastest {min(found) * 1e3:.1f} ms")
    for yardstick in ("bare", "in use"):
        report(times, yardstick)


if __name__ == "__main__":
    main()
