"""`partrain launch`."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, Overrides
from partrain.errors import escaped

if TYPE_CHECKING:
    from partrain.launch.script import LaunchScript
    from partrain.plan.plan import Plan
    from partrain.run.folder import RunFolder
    from partrain.run.records import Outcome

JobOrPlan = Annotated[
    Path,
    typer.Argument(
        metavar="JOB", help="The job file, or a plan.json of `partrain plan --out`.", show_default=False
    ),
]
New = Annotated[bool, typer.Option("--new", help="Start another run, whatever runs there are of this job.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and end.")]


def launch(
    job: JobOrPlan,
    *,
    overrides: Overrides = None,
    new: New = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train: plan the job and start all its ranks on this machine.

    One line a step; Ctrl-C ends all ranks. The run folder keeps the job, the
    plan, the metrics, TensorBoard's files, and a log file a rank.
    """
    from partrain.launch.local import check_ready, local_script
    from partrain.launch.machine import find_machine
    from partrain.launch.supervise import supervise
    from partrain.run.folder import RunFolder
    from partrain.run.relaunch import relaunch

    gc.enable()  # what follows may take days
    plan, job_text = _planned(job, overrides)
    runs_folder = Path(plan.run_dir).absolute()
    script = local_script(plan, RunFolder(runs_folder / plan.name), python=sys.executable, environ=os.environ)
    if dry_run:
        _show_script(plan, script, as_json=as_json)
        return
    check_ready(plan, find_machine(os.environ))
    folder = relaunch(runs_folder, plan, job_text, new=new)
    script = local_script(plan, folder, python=sys.executable, environ=os.environ)
    if as_json:
        outcome = supervise(script, folder, on_event=lambda event: None)
        render.say_json({"run": str(folder.path), "outcome": asdict(outcome)})
    else:
        outcome = _watched(plan, folder, script, job)
    raise typer.Exit(outcome.exit_code)


def _planned(file: Path, overrides: list[str] | None) -> tuple[Plan, str]:
    """The plan, and the text that the run keeps as its job."""
    from partrain.cli.planning import plan_job, read_plan

    if file.suffix == ".json":
        if overrides:
            raise typer.BadParameter("--set changes a job; a plan is decided")
        return read_plan(file), f"# Launched from the plan {file.name}.\n"
    plan = plan_job(file, overrides).plan
    changes = "".join(f"# launched with --set {escaped(change)}\n" for change in overrides or ())
    return plan, file.read_text(encoding="utf-8-sig") + changes


def _watched(plan: Plan, folder: RunFolder, script: LaunchScript, job: Path) -> Outcome:
    """The run, shown from its start to its summary."""
    from partrain.cli import layouts
    from partrain.cli.console import Console
    from partrain.cli.outcomes import show_next, show_outcome, show_summary
    from partrain.launch.supervise import supervise

    layouts.show_layout(plan)
    render.pairs({"run": str(folder.path), "TensorBoard": str(folder.tensorboard)})
    layouts.show_ranks(plan)
    render.say()
    render.notes(plan.notes)
    render.say()
    with Console(plan) as console:
        outcome = supervise(script, folder, on_event=console.on_event)
    show_summary(console.records, folder)
    show_outcome(outcome, folder)
    show_next(folder, job, outcome)
    return outcome


def _show_script(plan: Plan, script: LaunchScript, *, as_json: bool) -> None:
    """What would be started."""
    from partrain.cli import layouts
    from partrain.spec.values import plain

    if as_json:
        render.say_json({"plan": plain(plan), "hosts": [asdict(host) for host in script.hosts]})
        return
    layouts.show_layout(plan)
    layouts.show_ranks(plan)
    for host in script.hosts:
        render.say()
        render.say((f"on {host.host}, in {host.folder}", "bold"))
        render.say_text("\n".join(f"{name}={value}" for name, value in host.env.items()), indent="  ")
        render.say_text(" ".join(host.ranks[0].argv) + f"    (rank 0 of {len(host.ranks)})", indent="  ")
    render.say()
    render.notes([*plan.notes, "dry run: nothing was started"])
