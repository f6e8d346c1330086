"""Saving: training waits while state is copied, a thread writes it, rank 0 makes it a checkpoint.

Each rank writes its file into a hidden folder and leaves word of it there. When the word of every rank has
come, rank 0 joins them into the manifest and gives the folder its name. No rank waits for another.
"""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

import partrain
from partrain.checkpoint.manifest import Manifest, StoredFile
from partrain.checkpoint.safetensors import write
from partrain.checkpoint.share import Share, joined, read_share, share_path, write_share
from partrain.checkpoint.shelf import begin, commit, hidden_path, remove_expired
from partrain.checkpoint.size import expected_bytes, shortage
from partrain.engine.restore import loss_scaler
from partrain.engine.snapshot import Arrangement, arrange, copy, file_name, room_for
from partrain.errors import CheckpointError
from partrain.plan.batch_ramp import sequences_before
from partrain.plan.plan import Plan
from partrain.spec.values import plain
from partrain.units import format_bytes

log = logging.getLogger(__name__)

_POLL_S = 0.05
_PATIENCE_S = 600.0
"""How long rank 0 waits for the others' word once its own file is written, at least."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay."""

    keep: int
    keep_every: int | None


class Saver:
    """Writes checkpoints of one engine, one at a time."""

    def __init__(
        self,
        engine: Any,
        plan: Plan,
        folder: Path,
        *,
        rank: int,
        retention: Retention,
        job: str | None = None,
    ) -> None:
        self._engine, self._plan, self._folder, self._rank = engine, plan, folder, rank
        self._retention, self._job = retention, job
        self._room: Tensor | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._begun: Future[None] | None = None
        self.stall_s = 0.0
        """Seconds that training waited for the last save."""
        self.failures: list[str] = []
        """Why saves came to nothing, as far as this rank knows."""

    def prepare(self) -> None:
        """Take the memory that saves copy to, in the background: once the optimizer has made its states."""
        self.wait()
        wanted = arrange(self._engine, self._plan, self._rank)

        def take() -> None:
            self._room = room_for(wanted)

        self._begun = self._writer.submit(take)

    def save(self, step: int) -> None:
        """Copy the state after `step`; it is written while training goes on. Collective over the world.

        A save that is still going on is waited for. What fails is in `failures` and in the log.
        """
        self.wait()
        failure = _said_by_first(self._prepared(step) if self._rank == 0 else "")
        if failure:
            self._note(step, failure)
            return
        began = time.monotonic()
        wanted = arrange(self._engine, self._plan, self._rank)
        if self._room is None or self._room.numel() != wanted.num_bytes:
            self._room = room_for(wanted)
        copy(wanted, self._room)
        self.stall_s = time.monotonic() - began
        written = self._writer.submit(self._write, step, wanted, self._room, loss_scaler(self._engine))
        self._begun = self._writer.submit(self._tell, step, written)  # the one worker comes to it after

    def wait(self) -> None:
        """Until what was begun is written, or has failed."""
        if self._begun is not None:
            wait((self._begun,))
            self._begun = None

    def _prepared(self, step: int) -> str:
        """Make the hidden folder; why that cannot be, if so."""
        try:
            begin(self._folder, step)
            return shortage(self._folder, expected_bytes(self._plan))
        except OSError as error:
            return f"{self._folder}: {error.strerror or error}"

    def _note(self, step: int, failure: str) -> None:
        log.error("step %d is not saved: %s", step, failure)
        self.failures.append(f"step {step} is not saved: {failure}")

    def _write(self, step: int, wanted: Arrangement, room: Tensor, loss_scale: dict[str, Any]) -> None:
        began, hidden = time.monotonic(), hidden_path(self._folder, step)
        share = self._written(hidden, wanted, room)
        write_share(share_path(hidden, self._rank), share)
        if self._rank == 0:
            self._commit(step, loss_scale, max(_PATIENCE_S, 10 * (time.monotonic() - began)))

    def _tell(self, step: int, written: Future[None]) -> None:
        """Tell whatever the writing failed of, foreseen or not: the run must not believe that it saved."""
        error = written.exception()
        if isinstance(error, OSError):
            self._note(step, f"{self._folder}: {error.strerror or error}")
        elif isinstance(error, CheckpointError):
            self._note(step, error.message)
        elif error is not None:
            log.error("saving step %d", step, exc_info=error)
            self._note(step, f"{type(error).__name__}: {error}")

    def _written(self, hidden: Path, wanted: Arrangement, room: Tensor) -> Share:
        path = hidden / file_name(self._rank)
        try:
            size, digest = write(path, (wanted.header, room.numpy().data))
            return Share(StoredFile(path.name, size, digest, wanted.random), wanted.weights)
        except OSError as error:
            path.unlink(missing_ok=True)  # room for the word
            return Share(None, {}, f"rank {self._rank}: {error.strerror or error}")

    def _commit(self, step: int, loss_scale: dict[str, Any], patience: float) -> None:
        """Make a checkpoint of what all ranks wrote; nothing is left of one that cannot be."""
        hidden = hidden_path(self._folder, step)
        try:
            shares = self._shares(hidden, patience)
            files, weights = joined(shares)
            manifest = self._manifest(step, loss_scale, files=files, weights=weights)
            path = commit(self._folder, manifest, num_ranks=len(shares))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        log.info("saved %s, %s", path.name, format_bytes(manifest.num_bytes))
        kept = self._retention
        for gone in remove_expired(self._folder, keep=kept.keep, keep_every=kept.keep_every):
            log.info("removed %s", gone.name)

    def _shares(self, hidden: Path, patience: float) -> list[Share]:
        """The word of every rank. Raises CheckpointError when one has failed or says nothing."""
        deadline = time.monotonic() + patience
        shares: list[Share] = []
        while len(shares) < self._plan.layout.world_size:
            share = read_share(share_path(hidden, len(shares)))
            if share is None and time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {len(shares)} has not said in {patience:.0f} s that it has written"
                )
            if share is None:
                time.sleep(_POLL_S)
            elif share.failure:
                raise CheckpointError(share.failure)
            else:
                shares.append(share)
        return shares

    def _manifest(self, step: int, loss_scale: dict[str, Any], **stored: Any) -> Manifest:
        plan = self._plan
        versions = {name: importlib.metadata.version(name) for name in ("torch", "deepspeed")}
        return Manifest(
            step=step,
            samples=sequences_before(step + 1, plan.training, plan.layout),
            optimizer=plan.training.optimizer.name,
            loss_scale=loss_scale,
            plan=plain(plan.without_secrets()),
            job=None if plan.env else self._job,
            versions={"partrain": partrain.__version__, **versions},
            created=time.time(),
            **stored,
        )


def _said_by_first(said: str) -> str:
    """What rank 0 says, on every rank."""
    words = [said]
    dist.broadcast_object_list(words, src=0)
    return words[0]
