"""`partrain rehearse`."""

from __future__ import annotations

from typing import Annotated

import typer

from partrain.cli.options import AsJson, JobFile, Overrides

Shrink = Annotated[
    bool, typer.Option("--shrink", help="All ranks, as processes of this machine's CPU, with a small model.")
]


def rehearse(
    job: JobFile, *, shrink: Shrink = False, overrides: Overrides = None, as_json: AsJson = False
) -> None:
    """Find out before paying for GPUs whether a job works: run it small, on this machine.

    With --shrink at most 16 processes train a model of the same family and layout with few, small layers:
    groups, schedule, data, evaluation, a checkpoint, and a resume from it.
    """
    if not shrink:
        raise typer.BadParameter("--shrink says what is rehearsed")
    from partrain.cli.shrunk import rehearse_shrunk

    rehearse_shrunk(job, overrides, as_json=as_json)
