"""Entry on every rank: `python -m partrain.engine.worker RUN/plan.json`.

Reads the plan, meets the other ranks, checks, builds, trains; decides nothing. Whatever ends it is
written down for the agent that watches it, with its traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from partrain.errors import GuardError, PartrainError, RunError, ShortageError
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan
from partrain.run.failures import EXIT_OWN_ERROR, EXIT_PEER_LOST, write_failure
from partrain.run.folder import RunFolder
from partrain.run.lifeline import tie_to_parent
from partrain.run.records import Failure

log = logging.getLogger(__name__)

PEER_LOST = re.compile(
    r"connection (closed|reset|refused|was likely closed)|broken pipe|socket (closed|timeout)|remote process"
    r"|timed out waiting|NCCL.*(remote|system) error|heartbeat|store.*(wait|timed out)",
    re.IGNORECASE,
)
"""What gloo, NCCL and the rendezvous store say when another rank has gone away."""


def run(plan: Plan, folder: RunFolder, rank: int) -> Iterator[int]:
    """Train to the end of the plan, yielding each step as it begins.

    Imports the engine late: its faults are this rank's to report.
    """
    import torch
    import torch.distributed as dist

    from partrain.data.sources import open_sources
    from partrain.data.tokens import check_tokens
    from partrain.engine.build import build_engine, join_world
    from partrain.engine.checkpoints import Checkpoints
    from partrain.engine.metrics import Recorder
    from partrain.engine.peak_memory import PeakMemory
    from partrain.engine.shortage import told_shortage
    from partrain.engine.train import train

    size, device = plan.layout.world_size, torch.device("cpu")
    if plan.machine.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    join_world(plan.machine.device)
    if dist.get_world_size() != size:
        raise RunError(f"the plan has {size} ranks, {dist.get_world_size()} were started")
    sources = open_sources(plan)
    log.info("looking at part %d of %d of the tokens of %s", rank + 1, size, plan.data.source)
    for source in sources.all:
        check_tokens(source, part=rank, parts=size)
    memory = PeakMemory(plan, rank=rank, device=device)
    with memory.counting(), told_shortage(plan, rank=rank, memory=memory):
        engine = build_engine(plan, rank=rank, device=device)
        checkpoints = Checkpoints(engine, plan, folder, rank=rank, device=device)
        recorder = Recorder(plan, folder, rank, memory, done=checkpoints.resume())
        try:
            yield from train(engine, plan, sources, rank=rank, recorder=recorder, checkpoints=checkpoints)
        except RunError as error:  # of all ranks in the same step
            checkpoints.close(rescue=getattr(error, "sound_step", None))
            raise
    recorder.close()
    dist.barrier()
    dist.destroy_process_group()


def is_peer_lost(error: BaseException) -> bool:
    """Whether `error` says that another rank went away, rather than that this one failed."""
    return type(error).__name__.startswith("Dist") or (
        isinstance(error, (RuntimeError, OSError))
        and not isinstance(error, PartrainError)
        and PEER_LOST.search(str(error)) is not None
    )


def report(error: BaseException, folder: RunFolder, *, rank: int, step: int | None) -> int:
    """Write down why this rank ends; its exit code."""
    peer = is_peer_lost(error)
    raised = error.__cause__ if isinstance(error, ShortageError) else error
    text = "" if isinstance(raised, PartrainError) else "".join(traceback.format_exception(raised))
    lines = str(error).strip().splitlines()
    message = (
        str(error)
        if isinstance(error, PartrainError)
        else f"{type(error).__name__}: {lines[0] if lines else ''}"
    )
    kind = "peer" if peer else "guard" if isinstance(error, GuardError) else "error"
    log.error("%s", text or message)
    try:
        write_failure(folder, Failure(rank, time.time(), kind, message, text, step))
    except OSError as full:  # the log's last lines and the exit code have to do
        log.error("%s: no word could be left of why this rank ends: %s", message, full)
    return EXIT_PEER_LOST if peer else EXIT_OWN_ERROR


def main(plan_file: Path) -> int:
    """Exit code of this rank."""
    tie_to_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    rank, folder, step = int(os.environ["RANK"]), RunFolder(plan_file.parent), None
    try:
        plan = Plan.from_json(plan_file.read_text(encoding="utf-8"))
        log.info("rank %d at %s", rank, coordinate_of(rank, plan.layout))
        for step in run(plan, folder, rank):  # noqa: B007 (the step it was in when it failed)
            pass
    except Exception as error:
        return report(error, folder, rank=rank, step=step)
    return 0


if __name__ == "__main__":
    code = EXIT_OWN_ERROR
    try:
        code = main(Path(sys.argv[1]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the destructors of half-dead process groups would wait for ranks that are gone.
        os._exit(code)
