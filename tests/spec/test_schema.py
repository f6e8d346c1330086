"""The editors' schema says what the reader says."""

from typing import Any

from partrain.spec.catalog import model_names
from partrain.spec.forms import key_paths, section_keys
from partrain.spec.schema import DIALECT, job_schema

SCHEMA = job_schema()


def entry(path: tuple[str, ...]) -> dict[str, Any]:
    """The schema's entry for a key path."""
    found: dict[str, Any] = SCHEMA
    for key in path:
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
        {"enum": [0, 1], "type": "integer"},
        {"const": "auto", "type": "string"},
    ]
    assert entry(("training", "optimizer", "betas"))["maxItems"] == 2
