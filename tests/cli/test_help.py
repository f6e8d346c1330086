"""Help pages, and what the command line loads for them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import signature

import pytest
import typer

from partrain import __version__
from partrain.cli.app import COMMANDS
from tests.cli.command import ROOT, partrain

HEAVY = ("torch", "deepspeed", "tensorboard", "numpy", "transformers", "safetensors")

# Everything in one process: what none of them loads together, none loads alone.
LOAD = """
import io, sys
from contextlib import redirect_stdout
from partrain.cli.main import run
for arguments in {lines!r}:
    sys.argv = ["partrain", *arguments]
    try:
        with redirect_stdout(io.StringIO()):
            run()
    except SystemExit as end:
        # What this machine lacks is not the question.
        assert not end.code or arguments == ["check"], (arguments, end.code)
print([name for name in {heavy!r} if name in sys.modules])
"""


def heavy_modules_after(lines: list[list[str]]) -> str:
    program = LOAD.format(lines=lines, heavy=HEAVY)
    found = subprocess.run(
        (sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def test_no_help_page_loads_torch_or_its_company():
    assert heavy_modules_after([["--help"], *([*words, "--help"] for words in WORDS)]) == "[]"


def test_check_estimate_plan_and_schema_load_no_torch_either():
    job = "jobs/demo.yaml"
    lines = [["check"], ["check", job], ["estimate", job], ["plan", job], ["schema"], ["runs"]]
    assert heavy_modules_after(lines) == "[]"


def test_the_help_names_every_command():
    page = partrain("--help")
    assert page.code == 0
    assert all(f" {name} " in page.out for name in COMMANDS)


WORDS = [
    (name, *more)
    for name in COMMANDS
    for more in [(), *((word,) for word in getattr(import_module(f"partrain.cli.{name}"), "COMMANDS", ()))]
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_command_has_a_help_page(words: tuple[str, ...]):
    page = partrain(*words, "--help")
    module = import_module(f"partrain.cli.{words[0]}").__dict__
    text = module[words[-1]].__doc__ if words[-1] in module else module["HELP"]
    sentence = text.split(".")[0]
    assert page.code == 0
    assert " ".join(sentence.split()[:4]) in " ".join(page.out.split())


def test_without_arguments_it_shows_its_help():
    assert "Commands" in partrain().out + partrain().err


@pytest.mark.skipif("suggest_commands" not in signature(typer.Typer).parameters, reason="an older typer")
def test_a_command_nearly_right_is_suggested():
    page = partrain("chek", "job.yaml")
    assert page.code == 2
    assert "Did you mean 'check'" in page.err


def test_it_knows_its_version():
    assert partrain("--version").out == f"partrain {__version__}\n"
