"""Starts engines from published folders and saves them: `python -m tests.engine.from_world WORK RESULTS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator

from partrain.engine.build import build_engine, join_world
from partrain.engine.published import load_published
from partrain.engine.saving import Retention, Saver
from partrain.errors import CheckpointError
from partrain.plan.plan import Plan
from tests.engine.world import LINEAR


def main(work: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    rank = int(os.environ["RANK"])
    for case in json.loads(work.read_text()):
        plan = Plan.from_json(case["plan"])
        # torch computes in fp16 on any CPU; DeepSpeed asks whether the CPU has instructions for it.
        get_accelerator().is_fp16_supported = lambda plan=plan: plan.training.precision == "fp16"
        engine = build_engine(plan, rank=rank, device=torch.device("cpu"))
        target = Path(case["target"])
        try:
            load_published(engine, plan, rank)
        except CheckpointError as error:
            Path(f"{target}-refused-by-{rank}").write_text(str(error))
            engine.destroy()
            continue
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
