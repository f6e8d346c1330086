"""`partrain schema`."""

from __future__ import annotations

from partrain.cli import render


def schema() -> None:
    """Print the JSON schema of job files, for editors that complete and check them.

    `partrain init` writes it beside the job, where the job's first line refers to it.
    """
    from partrain.spec.schema import job_schema

    render.say_json(job_schema())
