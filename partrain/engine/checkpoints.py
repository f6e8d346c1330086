"""When a run is saved, and what it goes on from: the one place that decides "save now"."""

from __future__ import annotations

import logging
import math
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from partrain.checkpoint.fit import fit, refuse_misfits
from partrain.checkpoint.interval import best_interval_s
from partrain.checkpoint.shelf import Found, damage, newest_whole, read_checkpoint
from partrain.checkpoint.size import expected_bytes, shortage
from partrain.engine.groups import said_by_all
from partrain.engine.published import load_published
from partrain.engine.restore import load
from partrain.engine.saving import Retention, Saver
from partrain.errors import CheckpointError, RunError
from partrain.plan.plan import Plan
from partrain.run.attempts import first_start, num_failures
from partrain.run.folder import RunFolder
from partrain.run.notices import Notices
from partrain.units import format_seconds, parse_time

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run: what it begins with, and when it is saved."""

    def __init__(
        self, engine: Any, plan: Plan, folder: RunFolder, *, rank: int, device: torch.device
    ) -> None:
        self._engine, self._plan, self._folder = engine, plan, folder
        self._rank, self._device = rank, device
        self._notices = Notices(folder.notices if rank == 0 else None)
        self._wish = plan.checkpoint
        kept = Retention(self._wish.keep, self._wish.keep_every)
        job = folder.job.read_text(encoding="utf-8", errors="replace") if folder.job.exists() else None
        self._saver = Saver(engine, plan, folder.checkpoints, rank=rank, retention=kept, job=job)
        self.done, self._saved_step, self._saved_s = 0, 0, time.monotonic()
        self._told = 0
        self._num_failures, self._first_start = num_failures(folder), first_start(folder) or time.time()
        self._is_terminated = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_terminated = True

    def resume(self) -> int:
        """Put the newest checkpoint that is whole into the engine; the steps `done` in it, 0 without one.

        Without one the weights are those that the plan starts from, if it names any.
        Collective. Raises CheckpointError where there are only damaged ones, or what there is does not
        fit the plan; RunError where the disk has no room for another.
        """
        found = self._newest()
        if found is not None:
            manifest = found.manifest
            judged = fit(manifest, self._plan)
            refuse_misfits(judged, found.path.name)
            load(self._engine, self._plan, self._rank, folder=found.path, manifest=manifest)
            self._notices.add(f"goes on from {found.path.name}")
            for note in judged.notes:
                self._notices.add(note)
            self.done = self._saved_step = manifest.step
        elif self._plan.weights is not None:
            load_published(self._engine, self._plan, self._rank)
            self._notices.add(f"starts from the weights of {self._plan.weights}")
        lacking = shortage(self._folder.checkpoints, expected_bytes(self._plan))
        if self._wish.every != "none" and lacking:
            raise RunError(lacking, hint="make room, or checkpoint: {every: none}")
        self._saved_s = time.monotonic()
        return self.done

    def _newest(self) -> Found | None:
        """The newest checkpoint whose every byte is right, the same on every rank."""
        damaged: dict[str, str] = {}
        while True:
            told: list[Any] = [None]
            if self._rank == 0:
                found, skipped = newest_whole(self._folder.checkpoints, without=damaged)
                damaged |= {item.path.name: item.reason for item in skipped}
                told = [found.path.name if found else None]
            dist.broadcast_object_list(told, src=0)
            if told[0] is None:
                self._refuse_if_all_are(damaged)
                return None
            path = self._folder.checkpoints / told[0]
            # Looked at twice before it is given up: a file system may fail once.
            said = self._damage(path) and self._damage(path)
            if not said:
                self._tell_skipped(damaged)
                return Found(path, read_checkpoint(path))
            damaged[path.name] = "; ".join(said)

    def _damage(self, path: Path) -> list[str]:
        """What any rank finds wrong with a checkpoint, on every rank; each reads a part of its files."""
        try:
            manifest = read_checkpoint(path)
            found = list(damage(path, manifest, part=self._rank, parts=dist.get_world_size()))
        except CheckpointError as error:
            found = [error.message]
        return said_by_all(found)

    def _refuse_if_all_are(self, damaged: dict[str, str]) -> None:
        """Without a checkpoint a run begins anew, but not where there were some."""
        listed = [f"{name}: {reason}" for name, reason in damaged.items()]
        if any(said_by_all(listed)):
            raise CheckpointError(
                f"no checkpoint in {self._folder.checkpoints} is whole: {'; '.join(listed)}",
                hint="--new starts another run; without these folders this one begins again",
            )

    def _tell_skipped(self, damaged: dict[str, str]) -> None:
        for name, reason in damaged.items():
            self._notices.add(f"skipped {name}: {reason}", is_grave=True)

    def after(self, step: int) -> bool:
        """At the end of `step`: save if it is time to; whether the run is to end here. Collective.

        Raises RunError when a save has failed and the job wants to stop then.
        """
        ends = step == self._plan.training.steps
        wants_save, wants_stop, has_failed = self._agreed(self._asked())
        self._tell_failures()
        if has_failed:
            self._refuse_failures()
        if step == self.done + 1 and self._wish.every != "none":
            self._saver.prepare()
        if ends or wants_stop or wants_save or self._is_due(step):
            self.save(step)
        if ends or wants_stop:
            self.close()
            self._refuse_failures()
        return wants_stop

    def _refuse_failures(self) -> None:
        """Raise RunError, on every rank, where a save has failed that must not. Collective."""
        must = self._wish.on_failure == "stop"
        said = said_by_all(self._saver.failures[-1:] if must else ())
        if said:
            raise RunError(said[0], hint="checkpoint: {on_failure: continue}")

    def save(self, step: int) -> None:
        """Save the state after `step`, unless that is done or nothing is to be saved. Collective."""
        if self._wish.every == "none" or step == self._saved_step:
            return
        began = time.monotonic()
        self._saver.save(step)
        self._saved_step, self._saved_s = step, time.monotonic()
        log.info("step %d: training waited %s for the save", step, format_seconds(self._saved_s - began))
        if self._rank == 0:
            self._folder.save.unlink(missing_ok=True)

    def close(self, *, rescue: int | None = None) -> None:
        """Until all is written that was begun; collective with a step to `rescue`, which the state is of."""
        if rescue:
            self.save(rescue)
        self._saver.wait()
        self._tell_failures()

    def _is_due(self, step: int) -> bool:
        every, kept = self._wish.every, self._wish.keep_every
        return (isinstance(every, int) and step % every == 0) or (kept is not None and step % kept == 0)

    def _asked(self) -> tuple[bool, bool, bool]:
        """What this rank knows: is a save wanted, is a stop, has a save failed that must not."""
        wants_stop, wants_save = self._is_terminated, False
        if self._rank == 0:
            wants_stop |= self._folder.stop.exists()
            wants_save = self._folder.save.exists() or time.monotonic() - self._saved_s >= self._interval_s()
        return wants_save, wants_stop, bool(self._saver.failures) and self._wish.on_failure == "stop"

    def _interval_s(self) -> float:
        every = self._wish.every
        if every == "auto":
            return best_interval_s(
                self._saver.stall_s,
                num_devices=self._plan.layout.world_size,
                run_s=time.time() - self._first_start,
                num_failures=self._num_failures,
            )
        return parse_time(every) if isinstance(every, str) and every != "none" else math.inf

    def _agreed(self, asked: tuple[bool, bool, bool]) -> tuple[bool, bool, bool]:
        """What any rank asks for, on every rank."""
        flags = torch.tensor(asked, dtype=torch.int32, device=self._device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        save, stop, failed = flags.tolist()
        return bool(save), bool(stop), bool(failed)

    def _tell_failures(self) -> None:
        for failure in self._saver.failures[self._told :]:
            self._notices.add(failure, is_grave=True)
        self._told = len(self._saver.failures)
