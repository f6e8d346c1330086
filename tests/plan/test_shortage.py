"""Which part of a rank's memory is blamed, from numbers set by hand."""

import pytest

from partrain.cost.estimate import Moment, StageEstimate, Term
from partrain.plan.memory import plan_memory
from partrain.plan.shortage import Shortage, moment_of, parts, shortage_words
from tests.plan.jobs import planned


def terms(**sizes: int) -> tuple[Term, ...]:
    return tuple(Term(name, size, "") for name, size in sizes.items())


STAGE = StageEstimate(
    stage=0,
    first=0,
    last=3,
    parameters=10,
    moments=(
        Moment("construction", terms(weights=150)),
        Moment("first forward", terms(weights=100, activations=300)),
        Moment("forward", terms(weights=100, gradients=100, activations=250, temporaries=5)),
        Moment("checkpoint", terms(weights=100, gradients=100)),
    ),
    replicated_bytes=0,
    reserve_bytes=20,
    outside_bytes=50,
)
FORWARD = STAGE.moments[2]


def refused(**changed: int | None) -> Shortage:
    known: dict[str, int | None] = {"asked_bytes": 10, "allocated_bytes": 440, "held_bytes": 200, **changed}
    return Shortage(moment="forward", **known)


def test_the_larger_of_a_first_and_a_later_pass_is_meant() -> None:
    assert moment_of(STAGE, "forward") is FORWARD
    assert moment_of(STAGE, "construction").bytes == 150
    assert moment_of(STAGE, "") is FORWARD  # the worst of all


@pytest.mark.parametrize(
    ("changed", "name", "was", "predicted"),
    [
        ({"allocated_bytes": 540}, "activations, temporaries", 350, 255),
        ({"held_bytes": 300, "allocated_bytes": 500}, "what stays from step to step", 300, 200),
        ({"held_bytes": None, "allocated_bytes": 600}, "tensors, activations most of all", 610, 455),
        ({"reserved_bytes": 490}, "holes of the allocator", 50, 20),
        ({"outside_bytes": 70}, "beside the allocator", 70, 50),
    ],
)
def test_the_part_that_has_grown_most_is_named(
    changed: dict[str, int], name: str, was: int, predicted: int
) -> None:
    most = max(parts(STAGE, FORWARD, refused(**changed)), key=lambda part: part.excess)
    assert (most.name, most.bytes, most.predicted) == (name, was, predicted)


def test_what_is_not_known_is_not_compared() -> None:
    nothing = refused(asked_bytes=None, allocated_bytes=None, held_bytes=None)
    assert list(parts(STAGE, FORWARD, nothing)) == []
    said = shortage_words(planned(), 1, nothing)
    assert said.startswith("out of memory in the forward pass on stage 1: memory was refused; ")
    assert said.endswith("hardware.memory_budget=0.87` says what to change")  # 0.92 x 0.95, rounded down


def test_twice_what_was_estimated_asks_for_half_the_budget() -> None:
    plan = planned()
    assert plan.memory_budget == 0.92
    forward = moment_of(plan_memory(plan).stages[0], "forward")
    shortage = Shortage(
        moment="forward", asked_bytes=forward.bytes, allocated_bytes=forward.bytes, held_bytes=None
    )
    assert "hardware.memory_budget=0.46`" in shortage_words(plan, 0, shortage)
