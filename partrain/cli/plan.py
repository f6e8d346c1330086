"""`partrain plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, JobFile, Overrides
from partrain.errors import Fault, SpecError

if TYPE_CHECKING:
    from partrain.plan.plan import Plan

Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the plan there, for `partrain launch FILE`.")
]
Deepspeed = Annotated[bool, typer.Option("--deepspeed", help="Show the configuration that DeepSpeed gets.")]


def plan(
    job: JobFile,
    *,
    out: Out = None,
    overrides: Overrides = None,
    deepspeed: Deepspeed = False,
    as_json: AsJson = False,
) -> None:
    """Decide everything a job leaves open, and show it: layout, stages, ranks.

    Needs neither torch nor the hardware that the job is for.
    """
    from partrain.cli import layouts
    from partrain.cli.planning import plan_job

    decided = plan_job(job, overrides).plan
    if out is not None:
        _write(out, decided)
    if as_json:
        from partrain.spec.values import plain

        shown = plain(decided.without_secrets())
        render.say_json({"chosen": layouts.chosen(decided), "plan": shown})
        return
    layouts.show_layout(decided)
    layouts.show_stages(decided)
    layouts.show_ranks(decided)
    if deepspeed:
        render.say()
        render.say_json(decided.deepspeed)
    if decided.notes:
        render.say()
        render.notes(decided.notes)
    if out is not None:
        render.say(f"written: {out}")


def _write(out: Path, decided: Plan) -> None:
    """Put the plan into the file `out`; only an older plan is replaced."""
    from partrain.cli.planning import file_bytes, is_plan
    from partrain.run.folder import OWNERS_ALONE, write_whole

    if os.path.lexists(out) and not (out.is_file() and is_plan(file_bytes(out))):
        message = f"{out} is there and is no plan, and nothing is overwritten"
        raise SpecError([Fault("--out", message, fix="another name")])
    try:
        write_whole(out, decided.to_json(), mode=OWNERS_ALONE)
    except OSError as error:
        raise SpecError([Fault("--out", f"{out} cannot be written: {error.strerror}")]) from error
