"""Jobs read from text, and the facts they are decided with."""

from partrain.errors import Fault
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.load import Reading, read_job_text

CPU = MachineFacts(
    device="cpu",
    name="cpu",
    num_devices=2,
    memory_bytes=None,
    bf16_flops=None,
    fp32_flops=None,
    origin="this machine",
)
BYTES = DatasetFacts(source="builtin:python-source", num_tokens=10_000_000, vocab_size=256)

DEMO = """\
version: 1
name: demo
model: {preset: tiny}
data: {train: builtin:python-source}
training: {sequence_length: 128, global_batch_size: 32, steps: 120}
parallel: {pp: 2, tp: 2}
"""


def read(text: str = DEMO, *overrides: str) -> Reading:
    return read_job_text(text.encode(), source="job.yaml", overrides=overrides, environ={})


def planned(
    text: str = DEMO,
    *overrides: str,
    machine: MachineFacts = CPU,
    data: DatasetFacts | None = BYTES,
    data_faults: tuple[Fault, ...] = (),
) -> Plan:
    return decide(read(text, *overrides), machine=machine, data=data, data_faults=data_faults)
