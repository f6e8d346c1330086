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
from typer.core import TyperCommand, TyperGroup

from partrain import __version__
from partrain.errors import PartrainError

COMMANDS = (
    "init",
    "check",
    "estimate",
    "rehearse",
    "plan",
    "launch",
    "runs",
    "status",
    "logs",
    "stop",
    "board",
    "sample",
    "checkpoint",
    "schema",
)
"""In the order of `partrain --help`; each is the function of that name in the module of that name, or the
functions of a module's COMMANDS."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: 128 + 13."""

USAGE_ERROR: Any = typer.BadParameter.__base__
"""Words on the command line that make no sense: `UsageError`, which typer does not export."""


class Command(TyperCommand):
    """A command whose user is told of faults in the form that was asked for: words, or JSON."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Options and arguments from the words of the command line."""
        # Of words that are wrong, which one is an option and which an option's value is not known.
        as_json = "--json" in args and any("--json" in option.opts for option in self.params)
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            raise _told(error, as_json=as_json) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        as_json = bool(ctx.params.get("as_json"))
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            raise _told(error, as_json=as_json) from None
        except PartrainError as error:
            from partrain.cli import render

            render.report_error(error, as_json=as_json)
            raise typer.Exit(error.exit_code) from None


def _told(error: Exception, *, as_json: bool) -> Exception:
    """`error`, or the end of the command if it has been told as JSON."""
    if not as_json:
        return error
    from partrain.cli import render

    message = getattr(error, "format_message", error.__str__)()
    render.say_json({"error": message, "fix": "", "exit_code": EXIT_USAGE})
    return typer.Exit(EXIT_USAGE)


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
        """Run the command; Ctrl-C, also at a question, ends it, and so does a reader of its output that went
        away (`| head`), which is not told a word."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_BROKEN_PIPE) from None


def _loaded(name: str) -> Any:
    module = import_module(f"partrain.cli.{name}")
    several = getattr(module, "COMMANDS", None)
    found = typer.Typer(
        add_completion=False, no_args_is_help=several is not None, help=module.HELP if several else None
    )
    for word in several or (name,):
        found.command(word, cls=Command)(getattr(module, word))
    command = typer.main.get_command(found)
    command.name = name
    return command


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
