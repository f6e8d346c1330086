"""`partrain estimate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, JobFile, Overrides
from partrain.errors import Fault, InfeasibleError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partrain.cli.planning import Planned
    from partrain.plan.advise import Fix

Explain = Annotated[
    bool, typer.Option("--explain", help="Every moment of a step, every term with its formula and source.")
]
Apply = Annotated[
    int | None,
    typer.Option("--apply", metavar="N", help="Write fix N into the job file; all else stays as it is."),
]


def estimate(
    job: JobFile,
    *,
    overrides: Overrides = None,
    explain: Explain = False,
    apply: Apply = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a job fits: the memory of every rank at its worst moment, against the device's.

    Needs neither torch nor the hardware that the job is for. Where it does not fit the exit code is 3, and
    the cheapest changes that make it fit are listed.
    """
    from partrain.cli import estimates
    from partrain.cli.planning import fixes_of, plan_job

    if apply is not None and overrides:
        raise typer.BadParameter("--apply writes into the job file, and what --set changes is not in it")
    planned = plan_job(job, overrides)
    if apply is not None:
        fix = _chosen(apply, fixes_of(planned))
        _write(job, planned, fix)
        if not as_json:
            estimates.show_applied(fix, job)
        planned = plan_job(job, overrides)
    found = estimates.Found.of(planned.plan, lambda: fixes_of(planned))
    if as_json:
        render.say_json(estimates.document(found, explain=explain))
    else:
        estimates.show(found, explain=explain, hint=estimates.apply_hint(job, overrides))
    if found.verdict.fits is False:
        raise typer.Exit(InfeasibleError.exit_code)


def _chosen(number: int, fixes: Sequence[Fix]) -> Fix:
    if not fixes:
        raise SpecError([Fault("--apply", "there is no fix to apply: the job fits, or none was found")])
    if not 1 <= number <= len(fixes):
        allowed = f"1 to {len(fixes)}" if len(fixes) > 1 else "1"
        raise SpecError([Fault("--apply", f"there is no fix {number}", allowed)])
    return fixes[number - 1]


def _write(job: Path, planned: Planned, fix: Fix) -> None:
    """Put the fix into the job file, which keeps its mode and, where it is a link, stays one."""
    from partrain.plan.apply import applied
    from partrain.run.folder import write_whole

    data = applied(planned.reading, fix.changes, source=str(job), environ=os.environ)
    file = job.resolve()
    try:
        write_whole(file, data.decode(), mode=file.stat().st_mode & 0o777)
    except OSError as error:
        raise SpecError([Fault("--apply", f"{job} cannot be written: {error.strerror}")]) from error
