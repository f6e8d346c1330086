"""Rules among the values of a job that need nothing but the job."""

from __future__ import annotations

from collections.abc import Callable

from partrain.errors import Reason
from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.data import share_of
from partrain.spec.job import JobSpec
from partrain.spec.optimizers import OPTIMIZERS, resolve_optimizer, unread_keys
from partrain.spec.training import EvaluateSection, ScheduleSection


def length_is_given_once(job: JobSpec) -> Reason | None:
    """Steps and tokens both say how long the training is."""
    paths = ("training.tokens", "training.steps", "training.epochs", "training")
    allowed = "one of steps and tokens"
    if job.training.steps is None and job.training.tokens is None:
        return Reason(("training", *paths[:3]), "neither steps nor tokens came", allowed, "steps: 1000")
    if job.training.steps is not None and job.training.tokens is not None:
        return Reason(paths, "both steps and tokens came", allowed, "leave out steps or tokens")
    return None


def warmup_ends_before_the_training(job: JobSpec) -> Reason | None:
    """With a longer warm-up the peak learning rate is never reached."""
    return too_long_a_warmup(job.training.schedule, job.training.steps)


def too_long_a_warmup(schedule: ScheduleSection, steps: int | None) -> Reason | None:
    """`warmup_ends_before_the_training`, for a job or a plan; None for `steps`: not known yet."""
    warmup = schedule.warmup_steps
    if steps is None or warmup < steps:
        return None
    return Reason(
        ("training.schedule.warmup_steps", "training.steps"),
        f"warmup_steps={warmup} is not less than steps={steps}",
        f"0 to {steps - 1}",
        f"warmup_steps: {steps // 10}",
    )


def the_rate_falls(job: JobSpec) -> Reason | None:
    """The decay ends at `min_lr`, and cannot rise to it."""
    return too_high_an_end(job.training.schedule, resolve_optimizer(job.training.optimizer).lr)


def too_high_an_end(schedule: ScheduleSection, peak: float) -> Reason | None:
    """`the_rate_falls`, for a job or a plan."""
    least = schedule.min_lr
    if least <= peak:
        return None
    return Reason(
        ("training.schedule.min_lr", "training.optimizer.lr"),
        f"min_lr={least} is more than optimizer.lr={peak}",
        f"0 to {peak}",
        f"min_lr: {peak / 10:g}",
    )


def keys_are_the_optimizers(job: JobSpec) -> Reason | None:
    """A key of another optimizer would be accepted and ignored."""
    wish = job.training.optimizer
    unread = unread_keys(wish)
    if not unread:
        return None
    names = [name for name, facts in OPTIMIZERS.items() if set(unread) <= set(facts.defaults)]
    other = f"; or name: {' or '.join(names)}" if names else ""
    return Reason(
        (*(f"training.optimizer.{key}" for key in unread), "training.optimizer.name"),
        f"{wish.name} reads no {' and no '.join(unread)}",
        ", ".join(OPTIMIZERS[wish.name].defaults),
        f"leave out {' and '.join(unread)}{other}",
    )


def muon_knows_the_order(job: JobSpec) -> Reason | None:
    """It finds its matrices in ZeRO's shares by the order of the weights."""
    zero = job.deepspeed.get("zero_optimization")
    shuffled = isinstance(zero, dict) and zero.get("round_robin_gradients") is True
    if job.training.optimizer.name != "muon" or not shuffled:
        return None
    return Reason(
        ("deepspeed.zero_optimization.round_robin_gradients", "training.optimizer.name"),
        "round_robin_gradients=true deals the weights out in an order that muon does not know",
        "false with muon",
        "leave it out",
    )


def rotary_fields_need_rotary_positions(job: JobSpec) -> Reason | None:
    """A learned table of positions has no frequencies."""
    model = job.model
    given = [
        name for name in ("rope_theta", "rope_scaling", "rotary_fraction") if getattr(model, name) is not None
    ]
    family_learns = model.preset is None and model.position is None and model.family == "gpt2"
    if not given or not (model.position == "learned" or family_learns):
        return None
    return Reason(
        (f"model.{given[0]}", "model.position", "model.family"),
        f"{given[0]} came with learned positions",
        "rotary positions with it",
        f"leave out {given[0]}, or position: rotary",
    )


def the_validation_share_is_a_part(job: JobSpec) -> Reason | None:
    """Something is left to train on, and something to evaluate on."""
    share = share_of(job.data.validation)
    if share is None or 0 < share < 1:
        return None
    return Reason(
        ("data.validation",),
        f"{job.data.validation} of the training data came",
        "more than 0% and less than 100%, or the path of a token file",
        "validation: 1%",
    )


def evaluation_needs_data(job: JobSpec) -> Reason | None:
    """There is no loss without something to measure it on."""
    if job.data.validation is not None or job.training.evaluate == EvaluateSection():
        return None
    return Reason(
        ("training.evaluate", "data.validation"),
        "evaluate came without data.validation",
        "data.validation: a share of the training data, or the path of a token file",
        "data.validation: 1%, or leave out evaluate",
    )


def what_is_not_saved_is_not_kept(job: JobSpec) -> Reason | None:
    """Without saves there is nothing to keep."""
    return kept_but_not_saved(job.checkpoint)


def kept_but_not_saved(wish: CheckpointSection) -> Reason | None:
    """Why the section keeps what it does not save, if so."""
    if wish.every != "none" or wish.keep_every is None:
        return None
    return Reason(
        ("checkpoint.keep_every", "checkpoint.every"),
        f"keep_every={wish.keep_every} came with every=none, which saves nothing",
        "a number of steps, a time or auto as every",
        "leave out every, or keep_every",
    )


def what_is_not_saved_is_not_exported(job: JobSpec) -> Reason | None:
    """Without saves there is nothing to export."""
    return exported_but_not_saved(job.checkpoint)


def exported_but_not_saved(wish: CheckpointSection) -> Reason | None:
    """Why the section exports what it does not save, if so."""
    if wish.every != "none" or wish.export == "none":
        return None
    return Reason(
        ("checkpoint.export", "checkpoint.every"),
        f"export={wish.export} came with every=none, which saves nothing",
        "a number of steps, a time or auto as every",
        "leave out every, or export",
    )


RULES: tuple[Callable[[JobSpec], Reason | None], ...] = (
    length_is_given_once,
    warmup_ends_before_the_training,
    the_rate_falls,
    keys_are_the_optimizers,
    muon_knows_the_order,
    rotary_fields_need_rotary_positions,
    the_validation_share_is_a_part,
    evaluation_needs_data,
    what_is_not_saved_is_not_kept,
    what_is_not_saved_is_not_exported,
)


def reasons_of(job: JobSpec) -> tuple[Reason, ...]:
    """All that does not go together in `job`."""
    return tuple(reason for rule in RULES if (reason := rule(job)) is not None)
