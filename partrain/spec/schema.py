"""The job format as a JSON schema, for editors that complete and check while one types."""

from __future__ import annotations

import ast
import importlib
import inspect
from itertools import pairwise
from typing import Any

from partrain.spec.catalog import model_names
from partrain.spec.job import JobSpec
from partrain.spec.section import Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """The schema of a job file; each key is described by the docstring below its field."""
    schema = JobSpec.model_json_schema()
    sections = {cls.__name__: cls for cls in _sections(JobSpec, [])}
    definitions = {**schema["$defs"], "JobSpec": schema}
    for name, section in sections.items():
        described = descriptions(section)
        for key, entry in definitions[name]["properties"].items():
            entry.pop("title", None)
            entry["description"] = described[key]
            _without_null(entry)
            if "patternProperties" in entry:
                entry["additionalProperties"] = False
    schema["$defs"]["ModelSection"]["properties"]["preset"]["enum"] = list(model_names())
    return {"$schema": DIALECT, **schema, "title": "partrain job"}


def descriptions(section: type[Section]) -> dict[str, str]:
    """Field -> the docstring below it, on one line."""
    tree = ast.parse(inspect.getsource(importlib.import_module(section.__module__)))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == section.__name__)
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return found


def _sections(section: type[Section], found: list[type[Section]]) -> list[type[Section]]:
    """`section` and all sections in it."""
    found.append(section)
    for info in section.model_fields.values():
        for arm in (info.annotation, *getattr(info.annotation, "__args__", ())):
            if inspect.isclass(arm) and issubclass(arm, Section) and arm not in found:
                _sections(arm, found)
    return found


def _without_null(entry: dict[str, Any]) -> None:
    """Takes null out: an empty value is refused, a key that keeps its default is left out."""
    arms = [arm for arm in entry.get("anyOf", []) if arm.get("type") != "null"]
    if "default" in entry and entry["default"] is None:
        del entry["default"]
    if len(arms) == 1:
        del entry["anyOf"]
        entry.update(arms[0])
    elif arms:
        entry["anyOf"] = arms
