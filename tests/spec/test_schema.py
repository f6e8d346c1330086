"""The editors' schema says what the reader says."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from partrain.spec.catalog import model_names
from partrain.spec.forms import key_paths, section_keys
from partrain.spec.load import read_job_text
from partrain.spec.schema import DIALECT, job_schema

SCHEMA = job_schema()
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*ROOT.glob("jobs/*.yaml"), *ROOT.glob("templates/*.yaml")])
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
OPTIMIZER = "training: {sequence_length: 128, global_batch_size: 32, optimizer: {%s}}"
GOOD = """\
version: 1
name: demo
model: {preset: tiny}
data: {train: builtin:python-source}
training: {sequence_length: 128, global_batch_size: 32, steps: 120}
"""


def entry(path: tuple[str, ...]) -> dict[str, Any]:
    """The schema's entry for a key path."""
    found: dict[str, Any] = SCHEMA
    for key in path:
        found = next((arm for arm in found.get("anyOf", ()) if "$ref" in arm), found)
        while "$ref" in found:
            found = SCHEMA["$defs"][found["$ref"].rpartition("/")[2]]
        found = found["properties"][key]
    return found


def objects() -> list[dict[str, Any]]:
    return [SCHEMA, *(entry for entry in SCHEMA["$defs"].values() if "properties" in entry)]


def test_the_schema_is_of_the_current_dialect() -> None:
    assert SCHEMA["$schema"] == DIALECT
    assert SCHEMA["required"] == ["version", "name", "model", "data", "training"]


def test_every_key_is_described_by_its_docstring() -> None:
    assert {path for path in key_paths() if not entry(path)["description"].endswith(".")} == set()
    assert entry(("training", "tokens"))["description"].startswith("Tokens to train on")


def test_no_section_takes_other_keys() -> None:
    assert all(found["additionalProperties"] is False for found in objects())
    assert set(SCHEMA["properties"]) == set(section_keys(()))


def test_presets_are_those_of_the_catalogue() -> None:
    assert entry(("model", "preset"))["enum"] == list(model_names())


def test_no_key_may_be_null() -> None:
    assert '"null"' not in str(SCHEMA).replace("'", '"')


def test_bounds_and_choices_are_there() -> None:
    assert entry(("training", "steps")) | {"description": ""} == {
        "type": "integer",
        "minimum": 1,
        "description": "",
    }
    assert entry(("parallel", "zero"))["anyOf"] == [
        {"enum": [0, 1, 2, 3], "type": "integer"},
        {"const": "auto", "type": "string"},
    ]
    assert entry(("training", "optimizer", "betas"))["maxItems"] == 2


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_right_by_the_schema_too(file: Path) -> None:
    job = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert [error.message for error in VALIDATOR.iter_errors(job)] == []


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("", "modle: {preset: tiny}"),
        ("version", "version: 2"),
        ("name", "name: -x"),
        ("model", "model: {hidden: 64}"),
        ("model.rope_scaling", "model: {rope_scaling: {factor: 8}}"),
        ("data.train", "data: {train: ''}"),
        ("training", "training: {sequence_length: 128}"),
        ("parallel.tp", "parallel: {tp: 0}"),
        ("parallel.zero", "parallel: {zero: 4}"),
        ("parallel.offload", "parallel: {offload: nvme}"),
        ("parallel.sequence_parallel", "parallel: {sequence_parallel: 'on'}"),
        ("model.dropout", "model: {dropout: 1}"),
        ("model.bias", "model: {bias: null}"),
        ("launch.env", "launch: {env: {A-B: x}}"),
        ("launch.env.A", "launch: {env: {A: 1}}"),
        ("training.optimizer.betas", OPTIMIZER % "betas: [0.9]"),
        ("training.optimizer.betas.1", OPTIMIZER % "betas: [0.9, 1]"),
        ("training.optimizer.lr", OPTIMIZER % "lr: 0"),
    ],
)
def test_a_wrong_value_is_wrong_by_the_schema_and_for_the_reader(path: str, lines: str) -> None:
    job = {**yaml.safe_load(GOOD), **yaml.safe_load(lines)}
    by_schema = {".".join(map(str, error.absolute_path)) for error in VALIDATOR.iter_errors(job)}
    assert by_schema == {path}
    assert read_job_text(yaml.safe_dump(job).encode(), source="job.yaml", environ={}).faults


def test_a_preset_that_is_not_there_is_wrong_by_the_schema() -> None:
    (error,) = VALIDATOR.iter_errors({**yaml.safe_load(GOOD), "model": {"preset": "tniy"}})
    assert list(error.absolute_path) == ["model", "preset"]
