"""`partrain checkpoint export`: what it refuses before a process is started, and that nothing is left."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from partrain.checkpoint.size import free_bytes
from partrain.cli.planning import plan_job
from partrain.errors import RunError
from partrain.launch.export import check_room
from tests.checkpoint.made import make
from tests.cli.command import JOB, job_file, partrain
from tests.cli.test_checkpoint import as_saved

REFUSED = Path(__file__).with_name("export-refusals.txt")
STRANGE = JOB.replace("{preset: tiny}", "{preset: tiny, norm: layernorm, bias: true, rotary_fraction: 0.5}")

CASES = (
    "nowhere new",
    "good there",
    "good file",
    "good link",
    "good new --dtype fp8 --json",
    "good new",  # its files are full of holes
    "good new --json",
    "short new",
    "strange new",
    "other new",
    "good --json",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of every kind, and names that are taken, in the folder that this process is in."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("good", JOB), ("short", JOB), ("strange", STRANGE)):
        as_saved(tmp_path / name, plan_job(job_file(tmp_path, text), None).plan, 2)
    next((tmp_path / "short").rglob("rank-00001.safetensors")).unlink()
    make(tmp_path / "other", 4)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    return tmp_path


def test_what_cannot_be_exported_is_refused_with_its_reason(here: Path, golden: Callable[[Path, str], None]):
    before, told = sorted(here.rglob("*")), []
    for case in CASES:
        found = partrain("checkpoint", "export", *shlex.split(case))
        said = (found.err + found.out).replace(str(here), "HERE")
        told.append(f"$ partrain checkpoint export {case}\n{said.rstrip()}\nexit code {found.code}\n")
        assert found.code == 2
    assert sorted(here.rglob("*")) == before
    golden(REFUSED, "\n".join(told))


def test_room_on_the_disk_is_asked_for_before_anything_is_written(tmp_path: Path):
    free = free_bytes(tmp_path)
    check_room(tmp_path / "far" / "new", free // 2)
    with pytest.raises(RunError, match="free on its disk, the model takes"):
        check_room(tmp_path / "far" / "new", 2 * free)
    assert list(tmp_path.iterdir()) == []
