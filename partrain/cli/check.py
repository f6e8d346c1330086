"""`partrain check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, Overrides
from partrain.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partrain.cli.planning import Planned
    from partrain.launch.check import Row

OptionalJob = Annotated[Path | None, typer.Argument(metavar="JOB", help="The job file.", show_default=False)]


def check(job: OptionalJob = None, *, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a job file and show every value with its origin; without a job, check this machine.

    All faults are reported together. A job needs neither torch nor the hardware that it is for; without a
    job the exit code is 2 when something that training here needs is missing, too old or too little.
    """
    if job is None:
        if overrides:
            raise typer.BadParameter("--set changes a job, and no job is given")
        _check_machine(as_json)
        return
    from partrain.cli.planning import plan_job
    from partrain.plan.resolved import resolved_job

    planned = plan_job(job, overrides)
    values = resolved_job(planned.job, planned.plan.without_secrets())
    if as_json:
        render.say_json(
            {"ok": True, "job": values, "origins": planned.plan.origins, "notes": list(planned.plan.notes)}
        )
        return
    render.tree(values, planned.plan.origins)
    render.say()
    render.notes(planned.plan.notes)
    render.verdict("ok", _in_short(planned))


def _in_short(planned: Planned) -> str:
    from partrain.units import format_count

    plan, layout = planned.plan, planned.plan.layout
    return (
        f"{format_count(plan.parameters)} parameters, {plan.training.steps} steps, {layout.world_size} ranks"
        f" (dp {layout.dp} x pp {layout.pp} x tp {layout.tp})"
    )


def _check_machine(as_json: bool) -> None:
    import os

    from partrain.launch.check import check_machine

    rows = check_machine(os.environ)
    wrong = sum(not row.ok for row in rows)
    if as_json:
        render.say_json({"ok": not wrong, "machine": [asdict(row) for row in rows]})
    else:
        _show_machine(rows)
    if wrong:
        raise typer.Exit(SpecError.exit_code)


def _show_machine(rows: Sequence[Row]) -> None:
    width = max(len(row.name) for row in rows)
    for row in rows:
        mark = ("ok", "good") if row.ok else ("--", "bad")
        render.say(mark, f"  {row.name.ljust(width)}  {row.value}")
        if row.hint:
            render.say(f"    {' ' * width}  ", (row.hint, "dim"))
    wrong = sum(not row.ok for row in rows)
    render.say()
    render.say(f"{wrong} of {len(rows)} need attention" if wrong else "This machine can run jobs.")
