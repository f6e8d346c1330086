"""Jobs that do not fit, and the changes that make them fit: each, applied to the file, is right and fits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from partrain.data.facts import find_facts
from partrain.plan.advise import MOST_FIXES, Facts, Fix, advise
from partrain.plan.apply import applied
from partrain.plan.decide import decide
from partrain.plan.memory import plan_memory, verdict_of
from partrain.plan.plan import Plan
from partrain.plan.price import price, relative_price
from partrain.plan.setting import Setting, setting_of
from partrain.spec.facts import MachineFacts
from partrain.spec.load import Reading, read_job_text

ROOT = Path(__file__).parents[2]
HOST = MachineFacts(
    device="cpu",
    name="a host",
    num_devices=8,
    memory_bytes=16 * 2**30,
    bf16_flops=None,
    fp32_flops=None,
    origin="this test",
)

EIGHT_B, ONE_B, FOUR_HUNDRED_B = "llama-3.1-8b-8xh100", "llama-3.2-1b-1xh100", "llama-3.1-405b-128xdgx-h100"
# A job that ships -> what it is changed to so that it does not fit.
TOO_LARGE: dict[str, tuple[str, dict[str, str]]] = {
    "a large micro-batch": (EIGHT_B, {"micro_batch_size": "16", "recompute": "none"}),
    "a small GPU": (EIGHT_B, {"node": "8xa100-40g", "micro_batch_size": "4", "recompute": "none"}),
    "smaller GPUs still": (EIGHT_B, {"node": "8xrtx-4090"}),
    "one small GPU": (ONE_B, {"node": "1xrtx-4090"}),
    "idle devices": (ONE_B, {"node": "8xrtx-4090", "recompute": "none"}),
    "a large model on one GPU": (ONE_B, {"preset": "llama-3.1-8b"}),
    "no recompute": (FOUR_HUNDRED_B, {"recompute": "none"}),
    "a sequence not split": (FOUR_HUNDRED_B, {"recompute": "selective", "sequence_parallel": "false"}),
    "many micro-batches of 64": ("gpt2-small", {"micro_batch_size": "64", "node": "8xrtx-3090"}),
    "many micro-batches of 32": (
        "gpt2-small",
        {"micro_batch_size": "32", "node": "8xa10", "preset": "gpt2-xl"},
    ),
    "a small host": ("demo", {"preset": "gpt2-medium", "sequence_length": "1024", "batches": "3"}),
    "a small host and replicas": (
        "demo-gpt",
        {"preset": "gpt2-medium", "sequence_length": "1024", "micro_batch_size": "16"},
    ),
    "micro-batches that would follow": (
        EIGHT_B,
        {
            "micro_batch_size": "auto",
            "sequence_length": "8192",
            "global_batch_size": "8",
            "recompute": "none",
            "dp": "8",
            "pp": "1",
            "tp": "1",
            "sequence_parallel": "false",
            "node": "8xa100-80g",
        },
    ),
    "another model": ("llama-3.1-8b-8xh100", {"preset": "gpt-neox-20b", "sequence_length": "2048"}),
    "a small part of the memory": (EIGHT_B, {"node": "dgx-h100, memory_budget: 0.4"}),
}


def text_of(name: str) -> bytes:
    job, changes = TOO_LARGE[name]
    lines = (ROOT / "jobs" / f"{job}.yaml").read_text().splitlines(keepends=True)
    for key, value in changes.items():
        at = next(i for i, line in enumerate(lines) if f"{key}: " in line.partition("#")[0])
        before, _, rest = lines[at].partition(f"{key}: ")
        end = min(rest.find(sign) for sign in ",}\n " if sign in rest)
        lines[at] = f"{before}{key}: {value}{rest[end:]}"
    return "".join(lines).encode()


def read(text: bytes) -> Reading:
    return read_job_text(text, source="job.yaml", environ={})


def planned(reading: Reading) -> Plan:
    assert reading.job is not None
    return decide(reading, machine=HOST, data=find_facts(reading.job.data.train))


@lru_cache
def advised(name: str) -> tuple[Reading, Plan, tuple[Fix, ...]]:
    reading = read(text_of(name))
    plan = planned(reading)
    return reading, plan, advise(reading, plan, Facts(HOST, plan.data))


def fits(plan: Plan) -> bool | None:
    return verdict_of(plan, plan_memory(plan)).fits


@pytest.mark.parametrize("name", TOO_LARGE)
def test_each_fix_applied_to_the_file_fits_and_is_a_right_job(name: str) -> None:
    reading, plan, fixes = advised(name)
    assert fits(plan) is False
    assert 1 <= len(fixes) <= MOST_FIXES
    for fix in fixes:
        after = planned(read(applied(reading, fix.changes, source="job.yaml", environ={})))
        assert fits(after) is True, fix.changes
        assert plan_memory(after) == fix.memory
        assert after.layout == fix.plan.layout
        assert after.layout.global_batch_size == plan.layout.global_batch_size


@pytest.mark.parametrize("name", TOO_LARGE)
def test_no_fix_holds_more_than_another_that_is_cheaper(name: str) -> None:
    _, _, fixes = advised(name)
    for number, fix in enumerate(fixes):
        assert not any(before.changes.items() <= fix.changes.items() for before in fixes[:number])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_more_machines_come_late_and_shorter_sequences_last(name: str) -> None:
    _, plan, fixes = advised(name)
    at = [(-fix.plan.training.sequence_length, fix.plan.nodes) for fix in fixes]
    assert at == sorted(at)
    if plan.nodes == 1 and fixes[0].plan.nodes == 1:
        assert {fix.plan.nodes for fix in fixes} == {1}


def test_a_job_that_fits_needs_no_fix() -> None:
    reading = read((ROOT / "jobs" / f"{EIGHT_B}.yaml").read_bytes())
    plan = planned(reading)
    assert fits(plan) is True
    assert advise(reading, plan, Facts(HOST, plan.data)) == ()


def test_the_plain_fix_is_among_them() -> None:
    _, _, fixes = advised("no recompute")
    assert {"training.recompute": "full"} in [fix.changes for fix in fixes]
    _, _, fixes = advised("many micro-batches of 64")
    assert fixes[0].changes == {"training.micro_batch_size": 32}
    assert fixes[0].costs == ()


def test_what_is_auto_is_given_where_it_would_follow_and_not_fit() -> None:
    _, plan, fixes = advised("micro-batches that would follow")
    # 8 sequences on 8 replicas are one each; on 4 replicas `auto` would work on both at once.
    assert plan.layout.micro_batch_size == 1
    split = next(fix for fix in fixes if fix.changes.get("parallel.tp") == 2)
    assert (split.changes["parallel.dp"], split.changes["training.micro_batch_size"]) == (4, 1)


def test_a_host_gains_nothing_from_offload_to_itself() -> None:
    for name in ("a small host", "a small host and replicas"):
        assert all("parallel.offload" not in fix.changes for fix in advised(name)[2])


def test_nothing_is_offered_where_nothing_helps() -> None:
    text = text_of("a small host").replace(b"node: cpu", b"node: cpu, memory_budget: 0.0000001")
    reading = read(text)
    plan = planned(reading)
    assert fits(plan) is False
    assert advise(reading, plan, Facts(HOST, plan.data)) == ()


def changed(plan: Plan, **changes: object) -> Setting:
    return replace(setting_of(plan), **changes)  # type: ignore[arg-type]


def test_computing_blocks_again_costs_their_forward_pass() -> None:
    _, plan, _ = advised("one small GPU")
    none, full = (changed(plan, recompute=name) for name in ("none", "full"))
    # Of three forward passes one more, without the head: 2 x 2048 x 128,256 of 2.1 GFLOP a token and more.
    ratio = price(full, plan).recompute / price(none, plan).arithmetic
    assert 1 / 4 < ratio < 1 / 3
    assert price(none, plan).recompute == 0


def test_a_pipeline_costs_its_bubble() -> None:
    _, plan, _ = advised("a small GPU")
    alone, four = (price(changed(plan, dp=2, pp=pp, tp=1, micro_batch_size=4), plan) for pp in (1, 4))
    assert alone.bubble == 0
    # 128 sequences of 2 replicas in micro-batches of 4: 16 of them, and 3 stages to fill.
    assert four.bubble == pytest.approx((four.arithmetic + four.recompute + four.kernels) * 3 / 16)


def test_prices_are_of_device_time_a_token() -> None:
    _, plan, _ = advised("one small GPU")
    one, two = setting_of(plan), changed(plan, dp=2)
    # Twice the devices take half the time, but for what they tell one another.
    assert 1 <= relative_price(one, two, plan) < 1.2
    assert relative_price(one, changed(plan, sequence_length=4096), plan) < 1
