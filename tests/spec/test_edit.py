"""Values put into the text of a job: the rest of it stays byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from partrain.errors import SpecError
from partrain.plan.apply import applied
from partrain.spec.edit import CannotEdit, edited
from partrain.spec.load import read_job_text

JOB = """\
# A job, with remarks.
version: 1
name: demo   # its name
model: {preset: tiny}
data: {train: synthetic}

training:                 # how
  sequence_length: 32     # tokens
  global_batch_size: 8
  optimizer: {lr: 1.0e-3,   # peak
    betas: [0.9, 0.95]}
  steps: 3                # a few
  # recompute: full

parallel: {pp: 2, tp: 1}  # two stages
hardware: {}
# the end"""

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a value in a line of its own": ({"training.steps": 50}, "steps: 3  ", "steps: 50  "),
    "a value in braces": ({"parallel.pp": 16}, "{pp: 2, tp", "{pp: 16, tp"),
    "a key into braces": ({"parallel.zero": 1}, "tp: 1}  #", "tp: 1, zero: 1}  #"),
    "a key into empty braces": ({"hardware.nodes": 2}, "{}", "{nodes: 2}"),
    "a key into lines": (
        {"training.recompute": "full"},
        "steps: 3                # a few\n",
        "steps: 3                # a few\n  recompute: full\n",
    ),
    "a section": ({"run.dir": "other"}, "{}\n", "{}\nrun:\n  dir: other\n"),
    "a key two levels down": ({"training.optimizer.eps": 1e-6}, "0.95]}", "0.95], eps: 1e-06}"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_place_changes(name: str) -> None:
    changes, before, after = CASES[name]
    assert JOB.count(before) == 1
    assert edited(JOB, changes) == JOB.replace(before, after)


def test_line_ends_and_a_missing_last_one_stay() -> None:
    text = "a:\r\n  b: 1\r\nc: 2"
    assert edited(text, {"a.d": 3}) == "a:\r\n  b: 1\r\n  d: 3\r\nc: 2"
    assert edited(text, {"e.f": True}) == "a:\r\n  b: 1\r\nc: 2\r\ne:\r\n  f: true"


def test_a_job_written_as_json_stays_json() -> None:
    text = '{"a": {"b": 1}, "c": "x"}'
    assert edited(text, {"a.d": "full", "e.f": 2}) == '{"a": {"b": 1, "d": "full"}, "c": "x", "e": {"f": 2}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: {b: '${SIZE}'}\n", "line 1: the value of b comes from a variable: '${SIZE}'"),
        ("a:\n  b: [1,\n   2]\n", "line 2: the value of b stands in several lines"),
        ("a: 1\n", "line 1: a is no section"),
        ("- a\n", "the file holds no sections"),
    ],
)
def test_what_cannot_be_changed_is_said(text: str, why: str) -> None:
    with pytest.raises(CannotEdit) as caught:
        edited(text, {"a.b": 2})
    assert str(caught.value) == why


VALUES = st.integers(1, 99) | st.booleans() | st.sampled_from(["full", "none"])
SECTIONS = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.sampled_from("efgh"), VALUES, min_size=1)
)


@given(SECTIONS, st.sampled_from("abcd"), st.sampled_from("efgh"), VALUES, st.booleans())
def test_the_text_reads_as_it_did_but_for_the_change(
    sections: dict[str, Any], section: str, key: str, value: Any, flow: bool
) -> None:
    data = {"z": 1, **sections}
    text = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False)
    expected = {**data, section: {**sections.get(section, {}), key: value}}
    assert yaml.safe_load(edited(text, {f"{section}.{key}": value})) == expected


def test_a_job_that_would_read_otherwise_is_left_alone() -> None:
    reading = read_job_text(JOB.encode(), source="job.yaml", environ={})
    with pytest.raises(SpecError, match=r"by hand, training\.steps: many"):
        applied(reading, {"training.steps": "many"}, source="job.yaml", environ={})
    other = read_job_text(JOB.encode(), source="job.yaml", overrides=["training.steps=5"], environ={})
    with pytest.raises(SpecError, match="read otherwise"):
        applied(other, {"training.seed": 2}, source="job.yaml", environ={})


def test_a_byte_order_mark_stays() -> None:
    reading = read_job_text(b"\xef\xbb\xbf" + JOB.encode(), source="job.yaml", environ={})
    data = applied(reading, {"training.steps": 50}, source="job.yaml", environ={})
    assert data == b"\xef\xbb\xbf" + JOB.replace("steps: 3", "steps: 50").encode()
