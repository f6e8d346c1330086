"""When one process saves, what it goes on from when something is damaged, and what a failed save does."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from partrain.checkpoint.shelf import checkpoints
from partrain.checkpoint.size import expected_bytes, free_bytes
from partrain.engine.checkpoints import Checkpoints
from partrain.errors import PartrainError
from partrain.run.folder import RunFolder
from partrain.spec.checkpoint import CheckpointSection

STEPS = 6


def found(training: Any, folder: Path) -> dict[str, Any]:
    """What came of each scenario; `training` is an engine with a plan of STEPS steps."""
    return {
        "when": when(training, folder / "when"),
        "damage": damage(training, folder / "damage"),
        "fails": fails(training, folder / "fails", "continue"),
        "stops": fails(training, folder / "stops", "stop"),
        "full": full(training, folder / "full"),
        "none": when(training, folder / "none", every="none"),
        "auto": when(training, folder / "auto", every="auto"),
        "signal": stopped(training, folder / "signal", lambda: os.kill(os.getpid(), signal.SIGTERM)),
        "file": stopped(training, folder / "file", RunFolder(folder / "file").stop.touch),
    }


def begun(training: Any, folder: Path, **wish: Any) -> Checkpoints:
    plan = replace(training.plan, checkpoint=CheckpointSection(**wish))
    folder.mkdir(parents=True, exist_ok=True)
    return Checkpoints(training.engine, plan, RunFolder(folder), rank=0, device=training.engine.device)


def names(folder: Path) -> list[str]:
    """The run's checkpoints, oldest first."""
    return [path.name for path in reversed(checkpoints(RunFolder(folder).checkpoints))]


def notices(folder: Path) -> list[str]:
    file = RunFolder(folder).notices
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["message"] for line in lines]


def when(training: Any, folder: Path, every: Any = 100) -> dict[str, Any]:
    """Asked for after step 2, every 3 steps for good, and at the end."""
    kept = None if every == "none" else 3
    run, ended = begun(training, folder, every=every, keep=10, keep_every=kept), []
    run.resume()
    for step in range(1, STEPS + 1):
        training.steps(step, step)
        if step == 2:
            RunFolder(folder).save.touch()
        ended.append(run.after(step))
    return {"names": names(folder), "ended": ended, "asked": RunFolder(folder).save.exists()}


def stopped(training: Any, folder: Path, stop: Callable[[], None]) -> dict[str, Any]:
    """Told to stop in step 2, by `stop`."""
    run, ended = begun(training, folder, every="2h"), []
    for step in (1, 2):
        if step == 2:
            stop()
        ended.append(run.after(step))
    return {"names": names(folder), "ended": ended}


def damage(training: Any, folder: Path) -> dict[str, Any]:
    """The newest has one bit flipped, the one before it is cut, only the first is whole; then none is."""
    run = begun(training, folder, every=2, keep=3)
    for step in range(1, STEPS + 1):
        run.after(step)
    files = [folder / "checkpoints" / name / "rank-00000.safetensors" for name in names(folder)]
    flip(files[2])
    files[1].write_bytes(files[1].read_bytes()[:-1])
    done = begun(training, folder, every=2).resume()
    said = notices(folder)
    files[0].unlink()
    try:
        begun(training, folder, every=2).resume()
    except PartrainError as error:
        return {"done": done, "said": said, "refused": error.message}
    raise AssertionError("a run with nothing but damaged checkpoints begins anew")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """The system lets no file grow beyond `most` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fails(training: Any, folder: Path, on_failure: str) -> dict[str, Any]:
    """The second save cannot be written, the third can."""
    run = begun(training, folder, every=2, on_failure=on_failure)
    raised = ""
    for step in range(1, STEPS + 1):
        try:
            with small_files(100_000 if step == 4 else resource.RLIM_INFINITY):
                run.after(step)
                run.close()
        except PartrainError as error:
            raised = f"{step}: {error.message}"
            break
    files = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return {"files": files, "said": notices(folder), "raised": raised}


def full(training: Any, folder: Path) -> dict[str, Any]:
    """A disk that fills up: no room before the first step, none for a save, none while it is written.

    `folder` is a small disk of its own, where the test could make one.
    """
    if not folder.is_mount():
        return {}
    run, filler = begun(training, folder, every=2, keep=1), folder / "filler"
    run.after(2)
    run.close()
    lacking = free_bytes(folder) - expected_bytes(training.plan)
    filler.write_bytes(bytes(lacking - 4096))  # the data would fit, the header and the manifest do not
    run.after(4)
    run.close()
    filler.write_bytes(bytes(lacking + 4096))
    run.after(6)
    run.close()
    refused = ""
    try:
        begun(training, folder, every=2).resume()
    except PartrainError as error:
        refused = error.message
    return {"names": names(folder), "said": notices(folder), "refused": refused}
