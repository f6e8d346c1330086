"""Tensor ranks against transformers, a case a line: `python -m tests.engine.families_world WORK RESULTS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from partrain.engine.build import join_world
from partrain.engine.groups import TensorGroup
from tests.engine.test_families import farthest


def main(work: Path, results: Path) -> None:
    torch.set_num_threads(1)
    join_world("cpu")
    rank, size = dist.get_rank(), dist.get_world_size()
    group = TensorGroup(rank, size, dist.group.WORLD)
    for case in json.loads(work.read_text()):
        ranks: list[tuple[float, float, float] | None] = [None] * size
        found = farthest(case["name"], group, sequence_parallel=case["sequence_parallel"])
        dist.all_gather_object(ranks, found)
        if rank == 0:
            with open(results, "a") as file:
                file.write(json.dumps(ranks) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # threads of the group are left as they are
