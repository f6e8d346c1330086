"""The errors that users are told are those of the measured rows."""

from __future__ import annotations

import pytest

from bench.memory_model.accuracy import Judged
from partrain.cost.accuracy import SEEN, Seen
from tests.cost.test_accuracy import DEEPSPEED, JUDGED, rows_of


def rows_with(quantity: str) -> list[Judged]:
    return [item for item in JUDGED if item.row["quantity"] == quantity]


KINDS = (rows_of(*DEEPSPEED), rows_with("peak_reserved"), rows_with("device_used"))


@pytest.mark.parametrize(("seen", "judged"), list(zip(SEEN, KINDS, strict=True)), ids=[s.what for s in SEEN])
def test_what_is_told_of_the_error_is_what_is_seen(seen: Seen, judged: list[Judged]) -> None:
    errors = [abs(item.error) for item in judged]
    found = (len(errors), round(sum(errors) / len(errors), 4), round(max(errors), 4))
    assert (seen.rows, seen.mean, seen.worst) == found
