"""`partrain init`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from partrain.cli import render, templates
from partrain.errors import Fault, SpecError

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
    text = _filled(_text_of(template or _answer("template", "laptop", ask=ask)), given, ask=ask)
    _check(text, file)
    beside = file.parent / SCHEMA
    if schema and beside.exists() and not _is_ours(beside):
        raise _fault(f"{beside} is there and is no schema of partrain", fix="--no-schema, or another folder")
    _write(file, text)
    if schema:
        _write_schema(beside)
    render.say(f"written: {file}" + (f", and {beside} for editors" if schema else ""))
    render.pairs(
        {
            f"  partrain check {file}": "every value and where it comes from",
            f"  partrain plan {file}": "its layout",
            f"  partrain launch {file}": "train",
        }
    )


def _fault(message: str, *, allowed: str = "", fix: str = "") -> SpecError:
    return SpecError([Fault("", message, allowed=allowed, fix=fix)])


def _answer(question: str, default: str, *, ask: bool) -> str:
    return str(typer.prompt(_QUESTIONS[question], default=default)) if ask else default


def _text_of(name: str) -> str:
    try:
        return templates.template(name)
    except KeyError:
        raise _fault(f"no template is called {name}", allowed=", ".join(templates.NAMES)) from None


def _filled(text: str, given: Mapping[str, str | None], *, ask: bool) -> str:
    for key, value in given.items():
        default = templates.value_of(text, key)
        chosen = value if value is not None else _answer(key, default, ask=ask)
        if chosen != default:
            text = templates.with_value(text, key, chosen if key == "steps" else render.yaml_value(chosen))
    return _fitted(text)


def _fitted(text: str) -> str:
    """`text` with a warm-up of at most a tenth of its steps, and sequences that its model takes."""
    from partrain.spec.catalog import UnknownName, model_preset

    limits = {"warmup_steps": max(0, int(templates.value_of(text, "steps")) // 10)}
    with suppress(UnknownName):  # the check of the whole tells
        limits["sequence_length"] = model_preset(templates.value_of(text, "preset")).fields["max_positions"]
    for key, limit in limits.items():
        if int(templates.value_of(text, key)) > limit:
            text = templates.with_value(text, key, str(limit))
    return text


def _check(text: str, file: Path) -> None:
    """Raises what `partrain check` would say of the job."""
    from partrain.cli.planning import plan_of
    from partrain.spec.load import read_job_text

    plan_of(read_job_text(text.encode(), source=str(file), environ={}))


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
