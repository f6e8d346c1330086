"""The job format as a JSON schema, for editors that complete and check while one types."""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from itertools import pairwise
from typing import Any, Literal

from partrain.spec.catalog import model_names
from partrain.spec.forms import Form, Key, forms, item_forms, key_of, keys_of
from partrain.spec.job import JobSpec
from partrain.spec.section import Bounds
from partrain.spec.values import plain

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS: Mapping[str, str] = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "pattern": "pattern",
}


def job_schema() -> dict[str, Any]:
    """The schema of a job file; each key is described by the docstring below its field."""
    definitions: dict[str, Any] = {}
    schema = _section_schema(JobSpec, definitions)
    definitions["ModelSection"]["properties"]["preset"]["enum"] = list(model_names())
    return {"$schema": DIALECT, **schema, "title": "partrain job", "$defs": definitions}


def descriptions(section: type) -> dict[str, str]:
    """Key -> the docstring below its field, on one line."""
    tree = ast.parse(inspect.getsource(importlib.import_module(section.__module__)))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == section.__name__)
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[key_of(field.target.id)] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return found


def _section_schema(section: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section; those of the sections in it join `definitions`."""
    described = descriptions(section)
    keys = keys_of(section)
    schema = {
        "type": "object",
        "description": inspect.getdoc(section),
        "properties": {
            name: {"description": described[name], **_key_schema(key, definitions)}
            for name, key in keys.items()
        },
        "required": [name for name, key in keys.items() if key.default is MISSING],
        "additionalProperties": False,
    }
    return {name: value for name, value in schema.items() if value != []}


def _key_schema(key: Key, definitions: dict[str, Any]) -> dict[str, Any]:
    has_default = key.default is not MISSING and key.default is not None
    default = {"default": _without_null(plain(key.default))} if has_default else {}
    return {**_schema(key.forms, definitions), **default}


def _schema(allowed: Iterable[Form], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value; null is left out: an empty value is refused, a default is had by leaving out."""
    arms = [_form_schema(form, definitions) for form in allowed if form.kind is not types.NoneType]
    return arms[0] if len(arms) == 1 else {"anyOf": arms}


def _form_schema(form: Form, definitions: dict[str, Any]) -> dict[str, Any]:
    if form.is_section:
        name = form.kind.__name__
        if name not in definitions:
            definitions[name] = _section_schema(form.kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if form.kind is Literal:
        first, *others = form.choices
        return {"type": _TYPES[type(first)], **({"enum": [first, *others]} if others else {"const": first})}
    if form.kind is tuple:
        return {"type": "array", **_items_schema(form, definitions)}
    if form.kind is dict:
        return {"type": "object", **_entries_schema(form, definitions)}
    return {} if form.kind is Any else {"type": _TYPES[form.kind], **_bounds_schema(form.bounds)}


def _items_schema(form: Form, definitions: dict[str, Any]) -> dict[str, Any]:
    if form.length is None:
        return {"items": _schema(item_forms(form, 0), definitions)}
    items = [_schema(item_forms(form, index), definitions) for index in range(form.length)]
    return {"prefixItems": items, "minItems": form.length, "maxItems": form.length}


def _entries_schema(form: Form, definitions: dict[str, Any]) -> dict[str, Any]:
    names, values = (forms(annotation) for annotation in form.items)
    entry = _schema(values, definitions)
    if names[0].bounds.pattern is None:
        return {"additionalProperties": entry}
    return {"patternProperties": {names[0].bounds.pattern: entry}, "additionalProperties": False}


def _bounds_schema(bounds: Bounds) -> dict[str, Any]:
    found = {word: getattr(bounds, name) for name, word in _BOUNDS.items()}
    return {word: bound for word, bound in found.items() if bound is not None}


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value
