"""The commands of `partrain`, each loaded when it is asked for.

A command's module is imported when that command is asked for; what only some of its uses need, it imports
inside its function. So the help of one command loads nothing of the others.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from partrain import __version__

COMMANDS = ("init", "check", "plan", "launch", "runs", "status", "logs", "board", "schema")
"""In the order of `partrain --help`; each is the function of that name in the module of that name."""

EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: 128 + 13."""


class Commands(TyperGroup):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; None: there is none of that name, and all are loaded for "did you mean"."""
        for name in (cmd_name,) if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.commands[name] = _loaded(name)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of its output that went away (`| head`) ends it without a word."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_BROKEN_PIPE) from None


def _loaded(name: str) -> Any:
    module = import_module(f"partrain.cli.{name}")
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(module, name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from partrain.cli import render

        render.say(f"partrain {__version__}")
        raise typer.Exit


@app.callback()
def partrain(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Write a training job once, know before it starts whether it is right, run it in parallel on DeepSpeed.

    A job file says what you want; a plan decides everything; a run is a folder that records what happened.
    Start with `partrain init`.
    """
