"""`partrain plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, JobFile, Overrides

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
        from partrain.run.folder import write_whole

        write_whole(out, decided.to_json())
    if as_json:
        from partrain.spec.values import plain

        render.say_json({"chosen": layouts.chosen(decided), "plan": plain(decided)})
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
