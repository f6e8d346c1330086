"""`partrain init`."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from partrain.cli import render, templates
from partrain.errors import Fault, FaultsError, SpecError

SCHEMA = "partrain.schema.json"
"""Beside the job; the first line of every template refers to it."""

_QUESTIONS = {
    "template": "Where will it run? laptop: this machine; one-node: eight GPUs; cluster: several nodes",
    "name": "Name of the job",
    "preset": "Model",
    "steps": "Optimizer steps",
}
"""Option -> what a person at a terminal is asked when it is not given."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="The job file to write.")]
Template = Annotated[str | None, typer.Option(help="laptop, one-node or cluster.", show_default="laptop")]
Name = Annotated[str | None, typer.Option(help="Name of the job.")]
Preset = Annotated[str | None, typer.Option(help="A model of the catalogue: tiny, gpt2, llama-3.1-8b, ...")]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.")]
Schema = Annotated[bool, typer.Option(help=f"Write {SCHEMA} beside the job, for editors.")]


def init(
    file: File = Path("job.yaml"),
    *,
    template: Template = None,
    name: Name = None,
    preset: Preset = None,
    steps: Steps = None,
    schema: Schema = True,
) -> None:
    """Write a commented job file to start from.

    At a terminal it asks for what no option gives. A file that is there is never overwritten.
    """
    if file.exists():
        raise _fault(
            f"{file} is there already, and nothing is overwritten", fix="another name: partrain init FILE"
        )
    ask = sys.stdin.isatty() and sys.stdout.isatty()
    given = {"name": name, "preset": preset, "steps": None if steps is None else str(steps)}
    text = _template(template, ask=ask)
    for key, value in given.items():
        text = text if value is None else _with(text, key, value)
    _check(text)
    for key, value in given.items():
        text = _asked(text, key) if ask and value is None else text
    beside = file.parent / SCHEMA
    if schema and beside.exists() and not _is_ours(beside):
        raise _fault(f"{beside} is there and is no schema of partrain", fix="--no-schema, or another folder")
    _write(file, text)
    if schema:
        _write_schema(beside)
    render.say(f"written: {file}" + (f", and {beside} for editors" if schema else ""))
    next_steps = {
        "check": "every value and where it comes from",
        "plan": "its layout",
        "launch": "train",
    }
    render.pairs({f"  partrain {name} {shlex.quote(str(file))}": what for name, what in next_steps.items()})


def _fault(message: str, *, allowed: str = "", fix: str = "") -> SpecError:
    return SpecError([Fault("", message, allowed=allowed, fix=fix)])


def _answer(question: str, default: str) -> str:
    return str(typer.prompt(_QUESTIONS[question], default=default)).strip()


def _template(name: str | None, *, ask: bool) -> str:
    """The text of the template with this name, or of the one that is asked for until it is one."""
    if name is not None or not ask:
        return _text_of(name or templates.NAMES[0])
    while True:
        try:
            return _text_of(_answer("template", templates.NAMES[0]))
        except SpecError as error:
            render.say_text(str(error))


def _text_of(name: str) -> str:
    try:
        return templates.template(name)
    except KeyError:
        raise _fault(f"no template is called {name}", allowed=", ".join(templates.NAMES)) from None


def _asked(text: str, key: str) -> str:
    """`text` with the answer to the question for `key`, which is asked until the job is right with it."""
    while True:
        answered = _with(text, key, _answer(key, templates.value_of(text, key)))
        try:
            _check(answered)
        except FaultsError as error:
            render.say_text(str(error))
        else:
            return answered


def _with(text: str, key: str, value: str) -> str:
    """`text` with `value` at `key`, and what depends on it."""
    if value == templates.value_of(text, key):
        return text
    is_number = key == "steps" and value.isascii() and value.isdecimal()
    return _fitted(templates.with_value(text, key, value if is_number else render.yaml_value(value)))


def _fitted(text: str) -> str:
    """`text` with a warm-up of at most a tenth of its steps, and sequences that its model takes."""
    from partrain.spec.catalog import UnknownName, model_preset

    limits = {}
    # What is no number of steps or no preset is told by the check of the whole.
    with suppress(ValueError):
        limits["warmup_steps"] = max(0, int(templates.value_of(text, "steps")) // 10)
    with suppress(UnknownName):
        limits["sequence_length"] = model_preset(templates.value_of(text, "preset")).fields["max_positions"]
    for key, limit in limits.items():
        if int(templates.value_of(text, key)) > limit:
            text = templates.with_value(text, key, str(limit))
    return text


def _check(text: str) -> None:
    """Raises what `partrain check` would say of the job, but for its places: the file is not there yet."""
    from partrain.cli.planning import plan_of
    from partrain.spec.load import read_job_text

    try:
        plan_of(read_job_text(text.encode(), source="", environ={}))
    except FaultsError as error:
        raise type(error)([replace(fault, place=None) for fault in error.faults]) from None


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise _fault(f"{file} cannot be written: {error.strerror}") from error


def _is_ours(path: Path) -> bool:
    """Whether a file is a schema of partrain: an older one is renewed, anything else left alone."""
    from partrain.run.reading import read_object
    from partrain.spec.schema import job_schema

    return bool((read_object(path) or {}).get("title") == job_schema()["title"])


def _write_schema(path: Path) -> None:
    from partrain.run.folder import write_whole
    from partrain.spec.schema import job_schema

    write_whole(path, json.dumps(job_schema(), indent=2) + "\n")
