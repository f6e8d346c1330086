"""Which model a manifest holds, and manifests that say what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partrain.checkpoint.manifest import Manifest
from partrain.checkpoint.shelf import read_checkpoint
from partrain.checkpoint.trained import trained
from partrain.cli.planning import plan_job
from partrain.errors import CheckpointError
from tests.cli.command import JOB, job_file
from tests.cli.test_checkpoint import as_saved


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    job = job_file(tmp_path, JOB.replace("{preset: tiny}", "{preset: tiny, vocab_size: 300}"))
    return read_checkpoint(as_saved(tmp_path, plan_job(job, None).plan, 2))


def changed(manifest: Manifest, section: str, **values: Any) -> Manifest:
    return replace(manifest, plan={**manifest.plan, section: {**manifest.plan[section], **values}})


def test_the_model_is_that_of_the_plan(manifest: Manifest):
    found = trained(manifest)
    assert (found.model.vocab_size, found.context, found.vocabulary, found.precision) == (
        300,
        32,
        300,
        "fp32",
    )


def test_only_what_the_data_has_is_the_vocabulary(manifest: Manifest):
    assert trained(changed(manifest, "data", vocab_size=256)).vocabulary == 256
    assert trained(changed(manifest, "data", vocab_size=999)).vocabulary == 300


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"num_layers": 10**9}, "more layers"),
        ("model", {"hidden_size": 64}, "embedding.weight is not that"),
        ("model", {"hidden_size": "64"}, "model: hidden_size: wrong"),
        ("training", {"precision": "fp8"}, "training.precision"),
        ("training", {"sequence_length": 0}, "training.sequence_length"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    manifest: Manifest, section: str, values: dict[str, Any], said: str
):
    with pytest.raises(CheckpointError, match=said):
        trained(changed(manifest, section, **values))


@pytest.mark.parametrize("section", ["model", "data", "training"])
def test_a_plan_without_a_section_is_refused(manifest: Manifest, section: str):
    with pytest.raises(CheckpointError, match="cannot be read"):
        trained(replace(manifest, plan={k: v for k, v in manifest.plan.items() if k != section}))
