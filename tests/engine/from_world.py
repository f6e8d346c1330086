"""Starts engines from published folders and saves them: `python -m tests.engine.from_world WORK RESULTS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from partrain.engine.build import build_engine, join_world
from partrain.engine.published import load_published
from partrain.engine.saving import Retention, Saver
from partrain.plan.plan import Plan
from tests.engine.world import LINEAR


def main(work: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    rank = int(os.environ["RANK"])
    for case in json.loads(work.read_text()):
        plan = Plan.from_json(case["plan"])
        engine = build_engine(plan, rank=rank, device=torch.device("cpu"))
        load_published(engine, plan, rank)
        target = Path(case["target"])
        saver = Saver(engine, plan, target, rank=rank, retention=Retention(1, None), job=None)
        saver.save(1)
        saver.wait()
        assert saver.failures == []
        dist.barrier()
        engine.destroy()
        F.linear = LINEAR


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)
