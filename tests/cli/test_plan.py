"""`partrain plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partrain.plan.plan import Plan
from tests.cli.command import JOB, ROOT, job_file, partrain

CHOSEN = {
    "dp": 1,
    "pp": 2,
    "tp": 1,
    "sequence_parallel": False,
    "zero": 1,
    "offload": "none",
    "micro_batch_size": 1,
    "num_micro_batches": 8,
    "recompute": "none",
}


def test_the_document_has_the_chosen_layout_and_the_plan(tmp_path: Path):
    document = json.loads(partrain("plan", str(job_file(tmp_path)), "--json").out)
    peaks = [stage["memory"]["peak_bytes"] for stage in document["plan"]["stages"]]
    predicted = {"peak_bytes": max(peaks), "device_bytes": max(peaks)}  # on CPUs nothing is beside it
    assert document["chosen"] == {**CHOSEN, **predicted}
    assert Plan.from_json(json.dumps(document["plan"])).layout.pp == 2


def test_out_writes_a_plan_that_can_be_launched(tmp_path: Path):
    out = tmp_path / "plan.json"
    shown = partrain("plan", str(job_file(tmp_path)), "--out", str(out))
    assert shown.out.splitlines()[-1] == f"written: {out}"
    assert Plan.from_json(out.read_text()).to_json() == out.read_text()
    assert partrain("launch", str(out), "--dry-run").code == 0


def test_stages_and_ranks_are_shown(tmp_path: Path):
    shown = partrain("plan", str(job_file(tmp_path)))
    rows = [line.split() for line in shown.out.splitlines()]
    # A block of tiny: 2 norms of 128, 128 x (128 + 64 + 64 + 128) of attention, 3 x 128 x 352 of MLP.
    # Two of them (369,152) and the embedding (256 x 128); two, a norm and the head (128 x 256).
    named = [row[:-2] for row in rows if row[-1:] == ["MiB"]]
    assert ["0", "embedding,", "blocks", "1-2", "401,920"] in named
    assert ["1", "blocks", "3-4,", "head", "402,048"] in named
    assert ["1", "0", "cpu", "0", "1", "0"] in rows


def test_a_large_rank_map_is_cut_in_the_middle():
    shown = partrain("plan", str(ROOT / "templates" / "cluster.yaml"))
    ranks = [line.split()[0] for line in shown.out.split("rank")[-1].splitlines() if line.strip()]
    assert len(shown.out.splitlines()) < 60
    assert "..." in ranks


def test_the_configuration_of_deepspeed_is_shown_on_request(tmp_path: Path):
    job = str(job_file(tmp_path))
    assert "train_micro_batch_size_per_gpu" not in partrain("plan", job).out
    assert '"train_micro_batch_size_per_gpu": 1' in partrain("plan", job, "--deepspeed").out


def test_a_damaged_plan_is_refused(tmp_path: Path):
    broken = tmp_path / "plan.json"
    broken.write_text('{"version": 1}')
    shown = partrain("launch", str(broken), "--dry-run")
    assert shown.code == 2
    assert "is not a plan of this version" in shown.err


@pytest.mark.parametrize("content", ["mine", '{"version": 1}', ""])
def test_out_replaces_no_file_that_is_no_plan(content: str, tmp_path: Path):
    job, other = job_file(tmp_path), tmp_path / "other"
    other.write_text(content)
    for out, text in ((job, job.read_text()), (other, content)):
        shown = partrain("plan", str(job), "--out", str(out))
        assert (shown.code, out.read_text()) == (2, text)
        assert "nothing is overwritten" in shown.err


def test_out_renews_a_plan(tmp_path: Path):
    job, out = job_file(tmp_path), tmp_path / "plan"
    assert partrain("plan", str(job), "--out", str(out)).code == 0
    assert partrain("plan", str(job), "--out", str(out), "--set", "training.steps=7").code == 0
    assert Plan.from_json(out.read_text()).training.steps == 7


def test_out_in_a_folder_that_is_not_there_is_told(tmp_path: Path):
    shown = partrain("plan", str(job_file(tmp_path)), "--out", str(tmp_path / "none" / "plan.json"))
    assert shown.code == 2
    assert "cannot be written: No such file or directory" in shown.err


def test_values_of_the_environment_are_kept_in_the_file_alone(tmp_path: Path):
    job, out = str(job_file(tmp_path, JOB + "launch: {env: {TOKEN: hf_1234}}\n")), tmp_path / "plan.json"
    shown = partrain("plan", job, "--json", "--out", str(out))
    assert json.loads(shown.out)["plan"]["env"] == {"TOKEN": "***"}
    assert Plan.from_json(out.read_text()).env == {"TOKEN": "hf_1234"}
    assert out.stat().st_mode & 0o077 == 0
    out.write_text(json.dumps(json.loads(shown.out)["plan"]))
    again = partrain("launch", str(out), "--dry-run")
    assert again.code == 2
    assert "env.TOKEN: its value was hidden when this plan was printed" in again.err
