"""How a run's end is shown: what it came to, or which rank failed first and why."""

from __future__ import annotations

from pathlib import Path

from partrain.cli import render
from partrain.run.failures import ranks_alike
from partrain.run.folder import RunFolder
from partrain.run.records import Failure, Outcome, StepRecord
from partrain.units import format_bytes, format_count, format_seconds


def show_outcome(outcome: Outcome, folder: RunFolder) -> None:
    """The end in one line; after a failure the first failing rank's own words, and the other ranks'."""
    render.say()
    render.verdict(outcome.state, outcome.message)
    if outcome.failure is not None and outcome.state != "done":
        _show_failure(outcome, outcome.failure, folder)


def _show_failure(outcome: Outcome, failure: Failure, folder: RunFolder) -> None:
    if failure.traceback:
        render.say()
        render.say(
            f"rank {failure.rank} said:"
            if failure.kind == "error"
            else f"the end of rank {failure.rank}'s log:"
        )
        render.say_text(failure.traceback.strip("\n"), indent="  ")
    alike = ranks_alike(outcome)
    if len(alike) > 1:
        render.say()
        render.say(f"ranks {', '.join(map(str, alike))} say the same")
    others = [other for other in outcome.other_failures if other.rank not in alike]
    if others:
        render.say()
        render.table(
            ("rank", "ended by", "which says"),
            [(str(other.rank), other.kind, first_line(other.message)) for other in others],
            right=("rank",),
        )
    render.say()
    render.pairs({f"log of rank {failure.rank}": str(folder.log(failure.rank).resolve())})


def first_line(text: str, width: int = 60) -> str:
    """The first line of `text`, cut to `width` characters.

    >>> first_line("one\\ntwo"), first_line("x" * 70)[-3:]
    ('one', 'xx…')
    """
    line = text.split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def show_summary(records: list[StepRecord], folder: RunFolder) -> None:
    """What the steps came to, and where they are written down."""
    rows = {}
    if records:
        last, total_s = records[-1], sum(record.step_s for record in records)
        tokens = last.tokens - records[0].tokens
        after_first = total_s - records[0].step_s
        rows = {
            "loss": f"{records[0].loss:.4f} at step {records[0].step}, {last.loss:.4f} at step {last.step}",
            "time": f"{format_seconds(total_s)} for {len(records)} steps",
            "speed": f"{format_count(tokens / after_first)} tokens/s after the first step"
            if after_first
            else "",
            "memory": f"{format_bytes(max(record.peak_bytes for record in records))} on the fullest rank",
        }
    render.say()
    render.pairs(
        {
            **{name: text for name, text in rows.items() if text},
            "run": str(folder.path.resolve()),
            "metrics": folder.metrics.name,
            "TensorBoard": f"{folder.tensorboard.name}/",
            "logs": f"{folder.logs.name}/, a file a rank",
        }
    )


def show_next(folder: RunFolder, job: Path, outcome: Outcome) -> None:
    """Commands that make sense now."""
    rank = f" --rank {outcome.failure.rank}" if outcome.failure else ""
    name, runs_folder = folder.path.name, folder.path.parent
    elsewhere = "" if runs_folder.resolve() == Path("runs").resolve() else f" --dir {runs_folder}"
    commands = {
        f"partrain board {name}{elsewhere}": "its curves in the browser",
        f"partrain status {name}{elsewhere}": "how it ended",
        f"partrain logs {name}{rank}{elsewhere}": "what a rank printed",
        f"partrain launch {job} --new": "another run",
    }
    render.say()
    render.say(("next", "bold"))
    render.pairs({f"  {command}": what for command, what in commands.items()})
