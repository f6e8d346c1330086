"""Every file in `bad/` is refused with the report beside it, all faults of the job, data and layout in one.

A file's first lines may give what else the command line had: `# --set key=value` and `# NAME=value`.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from partrain.errors import Fault, FaultsError
from partrain.plan.decide import decide
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.load import read_job_text

BAD = Path(__file__).parent / "bad"
JOBS = sorted(BAD.glob("*.yaml"))

MACHINE = MachineFacts(
    device="cpu",
    name="cpu",
    num_devices=8,
    memory_bytes=16 * 2**30,
    bf16_flops=None,
    fp32_flops=None,
    origin="this machine",
)
DATA = DatasetFacts(source="builtin:python-source", num_tokens=20_000_000, vocab_size=256)


def faults_of(file: Path) -> tuple[Fault, ...]:
    """All that `partrain check` would say of `file`, on a machine of 8 cores."""
    data = file.read_bytes()
    head = data.decode(errors="replace")
    overrides = re.findall(r"^# --set (.*\S)$", head, re.MULTILINE)
    environ = dict(re.findall(r"^# ([A-Z]+)=(.*)$", head, re.MULTILINE))
    reading = read_job_text(data, source=file.name, overrides=overrides, environ=environ)
    try:
        decide(reading, machine=MACHINE, data=DATA)
    except FaultsError as error:
        return error.faults
    return reading.faults


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_bad_job_gets_its_report(file: Path, golden: Callable[[Path, str], None]) -> None:
    faults = faults_of(file)
    assert faults
    golden(file.with_suffix(".txt"), "\n".join(str(fault) for fault in faults) + "\n")


def test_there_are_sixty_bad_jobs_each_with_its_report() -> None:
    assert len(JOBS) >= 60
    assert {file.stem for file in JOBS} == {file.stem for file in BAD.glob("*.txt")}
