"""Every job that ships loads and plans, on a machine without a GPU."""

from pathlib import Path

import pytest

from partrain.data.facts import find_facts
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.facts import MachineFacts
from partrain.spec.load import read_job

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted([*ROOT.glob("jobs/*.yaml"), *ROOT.glob("templates/*.yaml")])
LAPTOP = MachineFacts(
    device="cpu",
    name="a laptop",
    num_devices=4,
    memory_bytes=8 * 2**30,
    bf16_flops=None,
    fp32_flops=None,
    origin="this test",
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_loads_and_plans(path: Path) -> None:
    reading = read_job(path, environ={})
    assert reading.faults == ()
    assert reading.job is not None
    plan = decide(reading, machine=LAPTOP, data=find_facts(reading.job.data.train))
    assert plan.layout.global_batch_size == reading.job.training.global_batch_size
    assert Plan.from_json(plan.to_json()) == plan
