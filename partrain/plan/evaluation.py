"""What is evaluated when: the set that a job names, how much of it, how often."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from partrain.errors import Reason
from partrain.plan.plan import EvaluationPlan
from partrain.spec.data import share_of
from partrain.spec.facts import DatasetFacts, num_windows
from partrain.spec.job import JobSpec

LARGEST_AUTO_EVERY = 1000
"""Steps: the interval that Megatron-LM and GPT-NeoX have as their default."""

EVALUATIONS = 10
"""Evaluations of a training that is shorter than ten such intervals."""

STEPS_A_BATCH = 10
"""Steps for each global batch that is evaluated: forward alone is a third of a step, so evaluation takes
about a thirtieth of the time. 100 batches every 1000 steps are Megatron-LM's and GPT-NeoX's defaults."""

_FILE, _SHARE = ("data.validation", "data.train"), ("data.validation",)


@dataclass(frozen=True)
class ValidationSet:
    """Sequences that are not trained on."""

    data: DatasetFacts
    first: int
    num_sequences: int


def validation_set(
    job: JobSpec, data: DatasetFacts | None, validation: DatasetFacts | None
) -> ValidationSet | None:
    """The set that `job` names, `validation` being its file; None: there is none, or not enough is known.

    A share is the last of the training data's sequences, rounded down to whole ones.
    """
    share, length = share_of(job.data.validation), job.training.sequence_length
    if share is None:
        return None if validation is None else _whole(validation, length)
    if data is None or data.num_tokens is None:
        return None
    whole = _whole(data, length)
    held = floor(round(share * whole.num_sequences, 6))
    return ValidationSet(data, whole.num_sequences - held, held)


def _whole(data: DatasetFacts, length: int) -> ValidationSet:
    return ValidationSet(data, 0, num_windows(data.num_tokens or 0, sequence_length=length))


def evaluation_reasons(
    job: JobSpec,
    data: DatasetFacts | None,
    validation: DatasetFacts | None,
    *,
    vocab_size: int | None,
) -> tuple[Reason, ...]:
    """Why the job's set cannot be evaluated; `vocab_size` is the model's."""
    found = validation_set(job, data, validation)
    if share_of(job.data.validation) is not None:
        against = _of_share(job, data, found)
    elif found is not None:
        against = file_reasons(found.data, data, length=job.training.sequence_length, vocab_size=vocab_size)
    else:
        against = ()
    return against or _too_many_batches(job, found)


def _of_share(job: JobSpec, data: DatasetFacts | None, found: ValidationSet | None) -> tuple[Reason, ...]:
    given = job.data.validation
    if data is not None and data.num_tokens is None:
        said = f"{data.source} data has no end, so no last part can be held back"
        return (Reason(_FILE, said, "the path of a token file", "leave out validation"),)
    if found is None or found.num_sequences:
        return ()
    whole = num_windows(found.data.num_tokens or 0, sequence_length=job.training.sequence_length)
    if whole < 2:
        said = f"the training data has {whole} sequences of {job.training.sequence_length} tokens"
        return (Reason(_SHARE, f"{said}, and none to hold back", "", "leave out validation"),)
    least = -(-10_000 // whole) / 100  # rounded up to a hundredth of a percent
    said = f"{given} of {whole} sequences is less than one"
    return (Reason(_SHARE, said, f"{least:g}% or more, below 100%", f"validation: {least:g}%"),)


def file_reasons(
    found: DatasetFacts, data: DatasetFacts | None, *, length: int, vocab_size: int | None
) -> tuple[Reason, ...]:
    """Why sequences of `length` of a file cannot be evaluated beside the training data."""
    if data is not None and found.source == data.source:
        allowed = "another token file, or a share, which is not trained on"
        return (Reason(_FILE, "the validation data is the training data", allowed, "validation: 1%"),)
    wanted = data.vocab_size if data and data.vocab_size else vocab_size
    has, reasons = found.vocab_size, []
    if data and data.vocab_size and has != data.vocab_size:
        said = f"the validation data has a vocabulary of {has}, the training data one of {wanted}"
        fix = "write both files with the same tokenizer"
        reasons.append(Reason(_FILE, said, f"a vocabulary of {wanted}", fix))
    elif has is not None and wanted is not None and has > wanted:
        said = f"the validation data has a vocabulary of {has}, the model one of {wanted}"
        reasons.append(Reason(("data.validation", "model.vocab_size"), said, f"{wanted} or fewer"))
    if num_windows(found.num_tokens or 0, sequence_length=length) < 1:
        said = f"{found.num_tokens} tokens are too few for a sequence of {length} and the token after it"
        paths = ("data.validation", "training.sequence_length")
        reasons.append(Reason(paths, said, f"{length + 1} tokens or more", "validation: 1%"))
    return tuple(reasons)


def _too_many_batches(job: JobSpec, found: ValidationSet | None) -> tuple[Reason, ...]:
    batches, size = job.training.evaluate.batches, job.training.global_batch_size
    if not isinstance(batches, int) or found is None or batches * size <= found.num_sequences:
        return ()
    most = found.num_sequences // size
    paths = ("training.evaluate.batches", "data.validation", "training.global_batch_size")
    said = f"{batches} batches of {size} are {batches * size} sequences, and there are {found.num_sequences}"
    allowed = f"1 to {most}, or all" if most else "all"
    return (Reason(paths, said, allowed, f"batches: {most or 'all'}"),)


def evaluation_plan(
    job: JobSpec, found: ValidationSet | None, *, steps: int
) -> tuple[EvaluationPlan | None, dict[str, str]]:
    """The decision, and the origins of what was `auto`."""
    if found is None:
        return None, {}
    wish, origins = job.training.evaluate, {}
    every = wish.every if wish.every != "auto" else min(LARGEST_AUTO_EVERY, max(1, steps // EVALUATIONS))
    if wish.every == "auto":
        origins["training.evaluate.every"] = f"auto: {LARGEST_AUTO_EVERY}, or a tenth of the steps"
    number, path = found.num_sequences, "training.evaluate.batches"
    if wish.batches == "auto":
        most = max(1, every // STEPS_A_BATCH) * job.training.global_batch_size
        is_whole, number = number <= most, min(number, most)
        origins[path] = "auto: " + ("the whole set" if is_whole else f"one for every {STEPS_A_BATCH} steps")
    elif wish.batches != "all":
        number = wish.batches * job.training.global_batch_size
    return EvaluationPlan(every=every, data=found.data, first=found.first, num_sequences=number), origins
