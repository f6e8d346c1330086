"""A job made small: it passes every rule, and differs from its job in nothing that it does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from partrain.data.facts import find_facts
from partrain.layout.layout import Layout
from partrain.model.shape import padded_vocab
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.plan.resolved import leaves, resolved_job
from partrain.plan.shrink import STEPS, Change, Shrunk, shrunk, small_degrees, stand_ins, with_stand_ins
from partrain.spec.catalog import model_names, model_preset
from partrain.spec.facts import DatasetFacts
from partrain.spec.job import JobSpec
from partrain.spec.load import read_job_text
from partrain.spec.model import ModelSpec
from tests.cli.command import SHIPPED
from tests.plan.jobs import BYTES, CPU

LARGE = """\
version: 1
name: large
model: {preset: llama-3.1-8b}
data: {train: builtin:python-source}
training: {sequence_length: 4096, global_batch_size: 512, steps: 1000, micro_batch_size: 4}
parallel: {dp: 4, pp: 4, tp: 4}
hardware: {nodes: 8, node: dgx-h100}
"""
SIZES = {
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "mlp_size",
    "vocab_size",
    "max_positions",
    "sliding_window",
}


def planned(text: str, *overrides: str, data: DatasetFacts = BYTES) -> tuple[JobSpec, Plan]:
    reading = read_job_text(text.encode(), source="job.yaml", overrides=overrides, environ={})
    plan = decide(reading, machine=CPU, data=data)
    assert reading.job is not None
    return reading.job, plan


def small_of(text: str, *overrides: str, most: int = 16) -> tuple[Shrunk, Plan]:
    """The small job, and its plan by the way that every job file goes."""
    small = shrunk(*planned(text, *overrides), most=most)
    return small, planned(small.text)[1]


def changes_of(small: Shrunk) -> dict[str, Change]:
    return {change.path: change for change in small.changes}


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    old, new = dict(leaves(before)), dict(leaves(after))
    return {path for path in {**old, **new} if old.get(path) != new.get(path)}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_job_is_small_with_the_same_axes_and_tells_all_that_differs(path: Path) -> None:
    text = path.read_text()
    data = find_facts("builtin:python-source")
    job, real = planned(text, data=data)
    small = shrunk(job, real)
    small_job, plan = planned(small.text, data=data)
    at, there = plan.layout, real.layout
    assert at.world_size <= 16
    assert all(min(2, getattr(at, axis)) == min(2, getattr(there, axis)) for axis in ("dp", "pp", "tp"))
    assert at.num_micro_batches >= min(at.pp, there.num_micro_batches)
    assert plan.training.steps == STEPS
    assert plan.parameters < 2_000_000
    untold = differing(resolved_job(job, real), resolved_job(small_job, plan)) - changes_of(small).keys()
    learned = {"model.rope_theta", "model.rotary_fraction"} if real.model.position == "learned" else set()
    assert untold - learned - {"training.tokens"} == {"model.preset"}


@pytest.mark.parametrize(
    "name", {model_preset(name).fields["family"]: name for name in model_names()}.values()
)
def test_every_family_keeps_what_it_is_and_loses_size_alone(name: str) -> None:
    job, real = planned(LARGE, f"model.preset={name}", "parallel.tp=1", "training.sequence_length=512")
    _, plan = planned(shrunk(job, real).text)
    learned = {"rope_theta", "rotary_fraction"} if real.model.position == "learned" else set()
    for key in {field.name for field in fields(ModelSpec)} - SIZES - learned:
        assert getattr(plan.model, key) == getattr(real.model, key), key
    shares = [model.num_heads > model.num_kv_heads for model in (real.model, plan.model)]
    wider = [m.num_heads * m.head_size - m.hidden_size for m in (real.model, plan.model)]
    assert shares[0] == shares[1]
    assert (wider[0] > 0, wider[0] < 0) == (wider[1] > 0, wider[1] < 0)
    assert plan.model.num_layers <= 8


# Replicas are cut first, then shards, each to no less than 2 and as little as is needed; stages last.
DEGREES = {
    (64, 1, 1): (16, 1, 1),
    (1, 1, 4): (1, 1, 4),
    (64, 2, 2): (4, 2, 2),
    (128, 16, 8): (2, 4, 2),  # 2 x 16 x 8 = 256, tp 2: 64, pp 4: 16
    (1, 4, 8): (1, 4, 4),
    (2, 64, 1): (2, 8, 1),
    (3, 3, 3): (2, 3, 2),  # 16 // 9 = 1, no less than 2; tp 16 // 6; 2 x 2 x 3 = 12
}


@pytest.mark.parametrize(("given", "wanted"), DEGREES.items())
def test_degrees_are_cut_to_sixteen_ranks(given: tuple[int, int, int], wanted: tuple[int, int, int]) -> None:
    dp, pp, tp = given
    layout = Layout(dp, pp, tp, 1, False, 1, 1, "none", ())
    assert small_degrees(layout, 16) == wanted
    assert small_degrees(layout, 1) == (min(2, dp), min(2, pp), min(2, tp))


def test_the_micro_batches_fill_the_pipeline_and_make_the_batch() -> None:
    _, plan = small_of(LARGE)
    at = plan.layout
    assert (at.dp, at.pp, at.tp) == (2, 4, 2)
    assert (at.micro_batch_size, at.num_micro_batches) == (2, 4)
    _, plan = small_of(LARGE, "training.global_batch_size=32")  # two micro-batches for four stages
    assert plan.layout.num_micro_batches == 2


def test_what_a_cpu_cannot_do_is_replaced_with_the_reason() -> None:
    small, plan = small_of(
        LARGE,
        "training.precision=fp16",
        "training.loss_scale=1024",
        "training.optimizer={name: adamw8bit, lr: 1.0e-3}",
        "training.attention=flash",
        "training.compile=true",
    )
    told = {path: (change.before, change.after) for path, change in changes_of(small).items() if change.why}
    assert told == {
        "training.precision": ("fp16", "bf16"),
        "training.loss_scale": (1024.0, "dynamic"),
        "training.optimizer.name": ("adamw8bit", "adamw"),
        "training.attention": ("flash", "torch"),
        "training.compile": (True, False),
        "hardware.node": ("dgx-h100", "cpu"),
        "checkpoint.on_failure": ("continue", "stop"),
    }
    assert plan.training.optimizer.lr == 1e-3


@pytest.mark.parametrize(
    "overrides",
    [
        ("parallel={dp: 8, tp: 2, zero: 3, offload: parameters}",),
        ("parallel={dp: 32, zero: 2, offload: optimizer}",),
        ("parallel={dp: 1, pp: 1, tp: 1, zero: 0}", "training.precision=fp32", "training.tf32=true"),
        ("parallel={dp: 4, pp: 3, tp: 2, sequence_parallel: true}", "training.recompute=selective"),
        ("model.preset=mistral-7b-v0.1", "training.sequence_length=8192"),
        ("model.preset=gpt2", "parallel={dp: 2, pp: 2, tp: 3}", "training.sequence_length=1024"),
        (
            "model.preset=gpt2",
            "parallel={dp: 2, tp: 3, sequence_parallel: true}",
            "training.sequence_length=1023",
        ),
        ("training.optimizer={name: muon, momentum: 0.9}", "parallel={dp: 4, pp: 2, tp: 2}"),
        ("training.optimizer={name: lion}", "training.loss_chunk_size=1000"),
        ("training.schedule={name: wsd, warmup_steps: 10, min_lr: 1.0e-6, decay_ratio: 0.2}",),
        ("model.dropout=0.1", "model.attention_dropout=0.1", "guard={nan: skip, max_skipped_steps: 2}"),
        (
            "checkpoint={every: 100, keep: 3, keep_every: 500}",
            "deepspeed.zero_optimization.overlap_comm=true",
        ),
        ("launch.env={A: 'x$${B}y'}", "data.validation=1%", "training.evaluate={every: 10, batches: all}"),
        ("training.batch_ramp={start: 64, increment: 64, samples: 10000}",),
    ],
    ids=" ".join,
)
def test_layouts_and_options_of_every_kind_stay_and_are_legal(overrides: tuple[str, ...]) -> None:
    job, real = planned(LARGE, *overrides)
    small = shrunk(job, real)
    small_job, plan = planned(small.text)
    for name in ("zero", "sequence_parallel", "recompute", "offload"):
        assert getattr(plan.layout, name) == getattr(real.layout, name)
    assert plan.training.schedule.name == real.training.schedule.name
    assert plan.training.optimizer == real.training.optimizer
    assert (plan.guard, plan.env) == (real.guard, real.env)
    assert (plan.training.batch_ramp is None) == (real.training.batch_ramp is None)
    assert (plan.evaluation is None) == (real.evaluation is None)
    sliced = [isinstance(p.training.loss_chunk_size, int) for p in (real, plan)]
    assert sliced[0] == sliced[1]
    untold = differing(resolved_job(job, real), resolved_job(small_job, plan)) - changes_of(small).keys()
    assert untold <= {"model.preset", "model.rope_theta", "model.rotary_fraction"}


def test_a_window_that_masks_still_masks() -> None:
    _, plan = small_of(LARGE, "model.sliding_window=1024")
    assert plan.model.sliding_window is not None
    assert plan.model.sliding_window < plan.training.sequence_length
    _, plan = small_of(LARGE, "model.sliding_window=4096")
    assert plan.model.sliding_window == 4096


def test_a_head_stays_large_enough_to_turn_pairs() -> None:
    # A tenth of 16 is 1 and of 32 is 3, which are no pairs; of 64 it is 6.
    _, plan = small_of(LARGE, "model.rotary_fraction=0.1")
    assert plan.model.head_size == 64


def test_published_weights_are_left_out_and_that_is_told() -> None:
    job, real = planned(LARGE)
    small = shrunk(replace(job, model=replace(job.model, preset=None, from_="Llama")), real)
    assert "from" not in small.job["model"]
    change = changes_of(small)["model.from"]
    assert (change.before, change.after, bool(change.why)) == ("Llama", None, True)


def test_the_small_model_is_not_exported() -> None:
    small, plan = small_of(LARGE, "checkpoint.export=hf")
    assert plan.checkpoint.export == "none"
    assert changes_of(small)["checkpoint.export"].why


def test_checkpoints_that_are_kept_for_good_are_made() -> None:
    _, plan = small_of(LARGE, "checkpoint={every: 100, keep: 3, keep_every: 500}")
    assert (plan.checkpoint.every, plan.checkpoint.keep, plan.checkpoint.keep_every) == (1, 3, 2)


def test_a_vocabulary_that_is_padded_stays_so() -> None:
    _, plan = small_of(LARGE, "model.preset=gpt2", "parallel.tp=2", "training.sequence_length=1024")
    assert plan.model.vocab_size == 257
    assert padded_vocab(plan.model, plan.layout.tp) == 272  # two shards of 136, 17 x 8
    _, plan = small_of(LARGE)
    assert plan.model.vocab_size == 256


def test_all_tokens_of_the_data_stay_in_the_vocabulary() -> None:
    words = DatasetFacts(source="/data/words.bin", num_tokens=10**9, vocab_size=100_000)
    assert shrunk(*planned(LARGE, data=words)).job["model"]["vocab_size"] == 100_000


def test_a_job_that_saves_nothing_saves_nothing() -> None:
    small, plan = small_of(LARGE, "checkpoint.every=none")
    assert plan.checkpoint.every == "none"
    assert not any(path.startswith("checkpoint.") for path in changes_of(small))


def test_data_that_are_elsewhere_get_stand_ins() -> None:
    job, _ = planned(LARGE, "data.validation=1%")
    assert stand_ins(job, lambda path: False) == ()
    job = replace(job, data=replace(job.data, train="/far/web"))
    assert stand_ins(job, lambda path: True) == ()
    found = stand_ins(job, lambda path: False)
    assert [(change.path, change.after) for change in found] == [
        ("data.train", "synthetic"),
        ("data.validation", None),
    ]
    assert with_stand_ins(job, found).data.train == "synthetic"
    job = replace(job, data=replace(job.data, train="/near/web", validation="/far/held"))
    found = stand_ins(job, lambda path: path.startswith("/near"))
    assert [(change.path, change.after) for change in found] == [("data.validation", 0.5)]
