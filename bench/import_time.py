"""How long `partrain check JOB` takes, over `import typer, pydantic, yaml`; and what is said of 405B at once.

    python bench/import_time.py [--pairs 20] [--job jobs/demo.yaml]

The yardstick is what a small typed command line usually stands on. It stays the same whatever partrain itself
imports (pydantic is not among it), so that figures of different versions can be compared.

Each round runs the programs one right after the other, so that a busy machine slows all, in an order that
turns. All find their modules compiled, as after a first use; `cold` is the very first run, which compiles
them. Printed are the median of the rounds' ratios, the middle half, and all. The estimate is that of Llama
3.1 405B on 16,384 GPUs, and has half a second; `inspect` judges a checkpoint of that model from 1,024 ranks
(its manifest, no tensors) for its job, and has one second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from partrain.cli.planning import plan_job
from tests.cli.test_checkpoint import as_saved

ROOT = Path(__file__).resolve().parent.parent
BARE = "import typer, pydantic, yaml"
LARGEST = ROOT / "jobs" / "llama-3.1-405b-2048xdgx-h100.yaml"
SAVED = ROOT / "jobs" / "llama-3.1-405b-128xdgx-h100.yaml"
LIMIT = 1.6
LIMITS_S = {"estimate": 0.5, "inspect": 1.0}


def command(*words: str) -> str:
    """The program that `partrain WORDS` is."""
    return f"import sys; sys.argv = {['partrain', *words]!r}; from partrain.cli.main import run; run()"


def seconds(program: str, environ: dict[str, str]) -> float:
    """Wall-clock seconds of a Python program that must succeed."""
    start = time.perf_counter()
    subprocess.run((sys.executable, "-c", program), stdout=subprocess.DEVNULL, check=True, env=environ)
    return time.perf_counter() - start


def measure(programs: dict[str, str], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each program in each round, after one run of each that compiles its modules."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    with tempfile.TemporaryDirectory() as compiled:
        environ |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": compiled}
        for name, program in programs.items():
            cold_s = seconds(program, environ)
            print(f"{name:8} {cold_s * 1e3:6.1f} ms cold")
        for number in range(num_rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(seconds(programs[name], environ))
    return found


def report(times: dict[str, list[float]]) -> None:
    """Print the times, their ratio, and whether it is within the limit."""
    for name, found in times.items():
        print(f"{name:8} {statistics.median(found) * 1e3:6.1f} ms  fastest {min(found) * 1e3:.1f} ms")
    ratios = sorted(full / base for full, base in zip(times["check"], times["bare"], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    verdict = "within" if middle <= LIMIT else "above"
    spread = f"middle half {low:.2f} to {high:.2f}, all {ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"check / bare {middle:.2f}  {verdict} {LIMIT}; {len(ratios)} pairs, {spread}")
    for name, limit_s in LIMITS_S.items():
        median_s = statistics.median(times[name])
        print(f"{name:8} {median_s:.2f} s  {'within' if median_s <= limit_s else 'above'} {limit_s} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--job", default=str(ROOT / "jobs" / "demo.yaml"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        saved = as_saved(Path(folder), plan_job(SAVED, None).plan, 1000)
        programs = {
            "estimate": command("estimate", str(LARGEST)),
            "inspect": command("checkpoint", "inspect", str(saved), "--for", str(SAVED)),
            "bare": BARE,
            "check": command("check", options.job),
        }
        report(measure(programs, options.pairs))


if __name__ == "__main__":
    main()
