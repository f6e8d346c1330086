from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partrain.run.folder import RunFolder
from partrain.run.place import new_run_folder
from tests.launch.launched import Launched, processes_of


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run_folder(tmp_path / "runs", "demo")


@pytest.fixture
def nothing_left(folder: RunFolder) -> Iterator[None]:
    """No process that mentions the run's folder lives after the test."""
    yield
    assert processes_of(folder) == []


@pytest.fixture
def launch(folder: RunFolder, nothing_left: None) -> Iterator[Callable[[list[str]], Launched]]:
    started: list[Launched] = []

    def start(behaviours: list[str]) -> Launched:
        started.append(Launched(folder, behaviours))
        return started[-1]

    yield start
    for launched in started:
        launched.process.kill()
        launched.process.wait()
        assert launched.process.stdout is not None
        launched.process.stdout.close()
