"""`partrain stop`."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path

from partrain.run.folder import RunFolder, write_json
from partrain.run.place import new_run_folder
from partrain.run.records import Outcome
from tests.cli.command import partrain


def end_when_told(folder: RunFolder) -> None:
    """What a run does."""
    while not folder.stop.exists():
        time.sleep(0.02)
    write_json(folder.outcome, asdict(Outcome("interrupted", 130, "stopped after step 3 of 9; saved", 1.0)))


def test_a_run_is_told_to_stop_and_waited_for(tmp_path: Path):
    folder = new_run_folder(tmp_path, "demo")
    run = threading.Thread(target=end_when_told, args=(folder,))
    run.start()
    told = partrain("stop", "demo", "--dir", str(tmp_path))
    run.join()
    assert told.code == 0
    assert "stopped after step 3 of 9; saved" in told.out


def test_a_run_that_is_over_is_not_stopped(tmp_path: Path):
    folder = new_run_folder(tmp_path, "demo")
    folder.stop.touch()
    end_when_told(folder)
    folder.stop.unlink()
    told = partrain("stop", "--dir", str(tmp_path), "--json")
    assert (told.code, folder.stop.exists()) == (2, False)
    assert "does not run: it is interrupted" in json.loads(told.out)["error"]
