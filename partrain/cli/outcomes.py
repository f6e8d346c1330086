"""How a run's end is shown: what it came to, or which rank failed first and why."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partrain.cli import render
from partrain.cli.summary import Summary
from partrain.run.failures import ranks_alike
from partrain.run.folder import RunFolder
from partrain.run.records import EvaluationRecord, Failure, Outcome, perplexity
from partrain.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from partrain.cli.exports import Exported


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
            if failure.kind in ("error", "guard")
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


def evaluated_words(record: EvaluationRecord) -> str:
    """Loss and perplexity of an evaluation; an infinite one, which the file does not have, is told so."""
    return f"loss {record.validation_loss:.4f}, perplexity {perplexity(record.validation_loss):.4g}"


def show_summary(summary: Summary | None, folder: RunFolder, exported: Exported | None = None) -> None:
    """What the steps came to, and where they are written down."""
    render.say()
    render.pairs(
        {
            **(_summary_rows(summary) if summary else {}),
            "run": str(folder.path.resolve()),
            **({"exported": _export_words(exported)} if exported and not exported.fault else {}),
            "metrics": folder.metrics.name,
            "TensorBoard": f"{folder.tensorboard.name}/",
            "logs": f"{folder.logs.name}/, a file a rank",
        }
    )


def _export_words(exported: Exported) -> str:
    size = format_bytes(sum(exported.files.values()))
    return f"{exported.folder.name}/, {len(exported.files)} files, {size}, for transformers"


def _summary_rows(summary: Summary) -> dict[str, str]:
    first, last, seen = summary.first, summary.last, summary.num_steps
    done = last.step - first.step + 1
    steps = f"{seen} steps" if seen == done else f"the {seen} of {done} steps that were told here"
    rows = {
        "loss": f"{first.loss:.4f} at step {first.step}, {last.loss:.4f} at step {last.step}",
        "time": f"{format_seconds(summary.total_s)} for {steps}",
    }
    if summary.num_skipped:
        rows["skipped"] = f"the update of {summary.num_skipped} step{'s' * (summary.num_skipped > 1)}"
    if summary.evaluation is not None:
        told = summary.evaluation
        rows["validation"] = f"{evaluated_words(told)} at step {told.step}"
        rows["evaluation"] = f"{format_seconds(summary.evaluations_s)}, in no step's time"
    after_first_s = summary.total_s - first.step_s
    if seen > 1 and after_first_s > 0:
        speed = summary.tokens_after_first / after_first_s
        rows["speed"] = f"{format_count(speed)} tokens/s after the first step"
    return {**rows, "memory": _memory_words(summary)}


def _memory_words(summary: Summary) -> str:
    """The fullest rank, and the stage that is farthest above what was predicted, or least below."""
    words = f"{format_bytes(summary.peak_bytes)} on the fullest rank"
    pairs = zip(summary.most_bytes, summary.predicted_bytes, strict=False)
    excess = [most / predicted - 1 for most, predicted in pairs if predicted]
    if not excess:
        return words
    stage = max(range(len(excess)), key=excess.__getitem__)
    most, predicted = (format_bytes(of[stage]) for of in (summary.most_bytes, summary.predicted_bytes))
    where = f" on stage {stage}" if len(excess) > 1 else ""
    return f"{words}; estimated{where}: {predicted}, measured: {most} ({excess[stage]:+.1%})"


def show_failed_export(exported: Exported) -> None:
    """Why there is no export of a run that is done; the command that repeats it comes with the next ones."""
    render.say()
    first, *more = exported.fault.split("\n")
    render.verdict("failed", f"the export: {first}")
    for line in (*more, *([f"      fix: {exported.hint}"] if exported.hint else [])):
        render.say(line)


def show_next(
    folder: RunFolder, outcome: Outcome, again: Sequence[str], exported: Exported | None = None
) -> None:
    """Commands that make sense now, ready to be pasted; `again` are the words of one that launches it."""
    name, runs_folder = folder.path.name, folder.path.parent
    rank = ("--rank", str(outcome.failure.rank)) if outcome.failure else ()
    elsewhere = () if runs_folder.resolve() == Path("runs").resolve() else ("--dir", str(runs_folder))
    commands = {
        ("board", name, *elsewhere): "its curves in the browser",
        ("status", name, *elsewhere): "how it ended",
        ("logs", name, *rank, *elsewhere): "what a rank printed",
        **({exported.command: "export it again"} if exported and exported.fault else {}),
        **({} if outcome.state == "done" else {tuple(again): "go on with it"}),
        (*again, "--new"): "another run",
    }
    render.say()
    render.say(("next", "bold"))
    width = max(map(len, commands.values()))
    for words, what in commands.items():
        # Not folded: a command of two lines cannot be pasted.
        render.say((f"  {what.ljust(width)}  ", "dim"), shlex.join(("partrain", *words)))
