"""Why a rank ended: written by the rank itself, read by whoever watches it."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

from partrain.run.folder import RunFolder, write_json
from partrain.run.reading import read_object
from partrain.run.records import Failure, Outcome, failure_from

EXIT_OWN_ERROR = 1
"""Exit code of a worker that failed by itself."""
EXIT_PEER_LOST = 75
"""Exit code of a worker that lost its connection to another rank (EX_TEMPFAIL of sysexits.h)."""

_NUMBER = re.compile(r"\d+")


def write_failure(folder: RunFolder, failure: Failure) -> None:
    """Leave word of why `failure.rank` ends; the rank exits with one of the two codes above right after."""
    write_json(folder.failure(failure.rank), asdict(failure))


def read_failure(folder: RunFolder, rank: int) -> Failure | None:
    """The word that `rank` left; None: none that can be read."""
    try:
        failure = failure_from(read_object(folder.failure(rank)))
    except ValueError:
        return None
    return _in_one_line(failure) if failure.rank == rank else None


def _in_one_line(failure: Failure) -> Failure:
    """Keep the message's first line; all of it goes where a traceback would be, if there is none."""
    first, *rest = failure.message.strip().splitlines() or ["no message"]
    return replace(failure, message=first, traceback=failure.traceback or (failure.message if rest else ""))


def ranks_alike(outcome: Outcome) -> tuple[int, ...]:
    """Ranks that ended for the same reason as the first one, itself among them, in their order.

    Numbers are not compared: the same fault names other ranks, sizes and addresses on each rank.
    """
    first = outcome.failure
    if first is None:
        return ()
    others = (other.rank for other in outcome.other_failures if _reason(other) == _reason(first))
    return tuple(sorted({first.rank, *others}))


def _reason(failure: Failure) -> tuple[str, str, str]:
    return failure.kind, _NUMBER.sub("#", failure.message), _NUMBER.sub("#", failure.traceback)
