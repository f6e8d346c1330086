"""`partrain launch`."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, Overrides
from partrain.errors import InfeasibleError, escaped

if TYPE_CHECKING:
    from partrain.cli.estimates import Found
    from partrain.cli.planning import Planned
    from partrain.launch.script import LaunchScript
    from partrain.plan.plan import Plan
    from partrain.run.records import Outcome
    from partrain.run.relaunch import Relaunch

JobOrPlan = Annotated[
    Path,
    typer.Argument(
        metavar="JOB", help="The job file, or a plan.json of `partrain plan --out`.", show_default=False
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the job's run though the job has changed since.")
]
New = Annotated[bool, typer.Option("--new", help="Start another run, whatever runs there are of this job.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and end.")]
OverBudget = Annotated[
    bool, typer.Option("--over-budget", help="Start it though the estimate says that it does not fit.")
]


def launch(
    job: JobOrPlan,
    *,
    overrides: Overrides = None,
    resume: Resume = False,
    new: New = False,
    dry_run: DryRun = False,
    over_budget: OverBudget = False,
    as_json: AsJson = False,
) -> None:
    """Train: plan the job and start all its ranks on this machine.

    One line a step; Ctrl-C ends all ranks. The run folder keeps the job, the
    plan, the metrics, TensorBoard's files, and a log file a rank. A job that
    does not fit by the estimate is refused with exit code 3 and what would
    make it fit.
    """
    from partrain.cli.estimates import Found
    from partrain.cli.exports import exported_at_end
    from partrain.cli.planning import fixes_of
    from partrain.launch.local import check_ready, check_room, local_script
    from partrain.launch.machine import find_machine
    from partrain.launch.supervise import supervise
    from partrain.run.folder import RunFolder
    from partrain.run.relaunch import relaunch

    gc.enable()  # what follows may take days
    plan, job_text, planned = _planned(job, overrides, goes_on=not new)
    found = Found.of(plan, lambda: fixes_of(planned) if planned and not over_budget else ())
    is_over = _is_over_budget(job, found, as_json=as_json, wanted=over_budget)
    runs_folder = Path(plan.run_dir).absolute()
    script = local_script(plan, RunFolder(runs_folder / plan.name), python=sys.executable, environ=os.environ)
    if dry_run:
        _show_script(plan.without_secrets(), script, as_json=as_json)
        return
    check_ready(plan, planned.machine if planned else find_machine(os.environ))
    check_room(plan, runs_folder)
    if resume and new:
        raise typer.BadParameter("--resume goes on with a run, --new starts another")
    run = relaunch(runs_folder, plan, job_text, new=new, resume=resume, over_budget=is_over)
    plan, folder = run.plan, run.folder
    script = local_script(plan, folder, python=sys.executable, environ=os.environ)
    if as_json:
        outcome = supervise(script, folder, on_event=lambda event: None)
        exported = exported_at_end(plan, folder, outcome)
        told = {} if exported is None else {"exported": exported.as_object()}
        render.say_json({"run": str(folder.path), "outcome": asdict(outcome), **told})
    else:
        options = (word for change in overrides or () for word in ("--set", _shown(change)))
        again = ("launch", str(job), *options, *(["--over-budget"] if is_over else []))
        outcome = _watched(run, script, again)
    raise typer.Exit(outcome.exit_code)


def _is_over_budget(job: Path, found: Found, *, as_json: bool, wanted: bool) -> bool:
    """Whether the estimate exceeds the budget; unless that is `wanted`, the command ends with the fixes."""
    from contextlib import redirect_stdout

    from partrain.cli import estimates

    if found.verdict.fits is not False or wanted:
        return found.verdict.fits is False
    if as_json:
        error = {"error": "the estimate exceeds the budget", "exit_code": InfeasibleError.exit_code}
        render.say_json({**error, **estimates.document(found)})
    else:
        with redirect_stdout(sys.stderr):
            estimates.show_refusal(found, job=job)
    raise typer.Exit(InfeasibleError.exit_code)


def _planned(file: Path, overrides: list[str] | None, *, goes_on: bool) -> tuple[Plan, str, Planned | None]:
    """The plan, the text that the run keeps as its job, and what that was planned from, if it was now.

    `goes_on`: it may be that of a run which goes on.
    """
    from partrain.cli.planning import file_bytes, is_plan, plan_in, plan_job_text

    data = file_bytes(file)
    if file.suffix == ".json" or is_plan(data):
        if overrides:
            raise typer.BadParameter("--set changes a job; a plan is decided")
        return plan_in(data, file, goes_on=goes_on), f"# Launched from the plan {escaped(file.name)}.\n", None
    planned = plan_job_text(data, file, overrides, goes_on=goes_on)
    return planned.plan, kept_job(planned.reading.given, overrides or ()), planned


def kept_job(given: bytes, overrides: Sequence[str]) -> str:
    """The job as it was given, byte for byte, and below it the options that changed it.

    >>> kept_job(b"steps: 5", ["training.steps=7"])
    'steps: 5\\n# launched with --set training.steps=7\\n'
    """
    text = given.decode()
    end = "" if not overrides or not text or text.endswith(("\n", "\r")) else "\n"
    return text + end + "".join(f"# launched with --set {escaped(_shown(change))}\n" for change in overrides)


def _shown(override: str) -> str:
    """`override` as it may be shown: a token or a key may be among the environment's values."""
    from partrain.plan.plan import HIDDEN

    path, _, _ = override.partition("=")
    is_env = path.strip() == "launch" or path.strip().startswith("launch.env")
    return f"{path}={HIDDEN}" if is_env else override


def _watched(run: Relaunch, script: LaunchScript, again: Sequence[str]) -> Outcome:
    """The run, shown from its start to its summary; `again` are the words of a command that launches it."""
    from partrain.cli import layouts
    from partrain.cli.console import Console
    from partrain.cli.exports import exported_at_end, wants_export
    from partrain.cli.outcomes import show_failed_export, show_next, show_outcome, show_summary
    from partrain.launch.supervise import supervise

    plan, folder = run.plan, run.folder
    layouts.show_layout(plan)
    render.pairs({"run": str(folder.path), "TensorBoard": str(folder.tensorboard)})
    layouts.show_ranks(plan)
    render.say()
    changed = [f"changed: {change}" for change in run.changes]
    render.notes([*plan.notes, *(["goes on with a run that was begun"] if run.goes_on else []), *changed])
    render.say()
    with Console(plan) as console:
        outcome = supervise(script, folder, on_event=console.on_event)
    if wants_export(plan, outcome):
        render.say(("exporting the last checkpoint", "dim"))
    exported = exported_at_end(plan, folder, outcome)
    show_summary(console.summary, folder, exported)
    render.notes(exported.notes if exported else ())
    show_outcome(outcome, folder)
    if exported is not None and exported.fault:
        show_failed_export(exported)
    show_next(folder, outcome, again, exported)
    return outcome


def _show_script(plan: Plan, script: LaunchScript, *, as_json: bool) -> None:
    """What would be started; `plan` is without its secrets."""
    from partrain.cli import layouts
    from partrain.spec.values import plain

    hosts = [replace(host, plan=plan.to_json(), env={**host.env, **plan.env}) for host in script.hosts]
    if as_json:
        render.say_json({"plan": plain(plan), "hosts": [asdict(host) for host in hosts]})
        return
    layouts.show_layout(plan)
    layouts.show_ranks(plan)
    for host in hosts:
        render.say()
        render.say((f"on {host.host}, in {host.folder}", "bold"))
        render.say_text("\n".join(f"{name}={value}" for name, value in host.env.items()), indent="  ")
        render.say_text(shlex.join(host.ranks[0].argv) + f"    (rank 0 of {len(host.ranks)})", indent="  ")
    render.say()
    render.notes([*plan.notes, "dry run: nothing was started"])
