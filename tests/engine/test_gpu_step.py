"""The benchmark of one GPU runs through without one, at toy sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parent.parent.parent / "bench" / "gpu_step.py"
SAVERS = (
    "as planned",
    "plain loop",
    "math",
    "recompute full",
    "loss in slices",
    "dropout",
    "zero 2",
    "efficient",
)


def test_its_rows_agree_with_the_plain_loop(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    argv = [
        sys.executable,
        str(SCRIPT),
        "--tiny",
        "--json",
        str(target),
        "--sizes",
        "8b",
        "--savers",
        *SAVERS,
    ]
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent), "OMP_NUM_THREADS": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["saver"]: row for row in json.loads(target.read_text())["rows"]}
    assert list(rows) == list(SAVERS)
    assert rows.pop("efficient")["failed"].startswith("not here: attention=efficient")
    dropping = rows.pop("dropout")
    losses = {name: row["loss"] for name, row in rows.items()}
    assert max(losses.values()) - min(losses.values()) < 2e-3, losses  # bf16 rounds at 4e-3 of 6
    assert abs(dropping["loss"] - losses["as planned"]) > 1e-3
    for row in rows.values():
        assert row["tokens_per_s"] == pytest.approx(2 * 64 / row["step_s"])
    assert "loss in slices" in done.stdout
