"""Which runtime a row is of, and what is predicted for the quantity that was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.memory_model import deepspeed_2021, galvatron, megatron_stage, torchtune, zero3
from bench.memory_model.rows import Row, Unusable
from partrain.cost.constants import HOLES, OUTSIDE_OF_2021, RESERVE, RESERVE_OF_2021, Constant
from partrain.cost.estimate import Moment

PROFILES: Mapping[str, Callable[[Row], tuple[Moment, ...]]] = {
    "megatron-te": megatron_stage.predict,
    "megatron": megatron_stage.predict,
    "deepspeed-0.4-pipe": deepspeed_2021.predict,
    "deepspeed-0.19": zero3.predict,
    "deepspeed-hf-zero3": zero3.predict,
    "deepspeed-other": zero3.predict,
    "galvatron": galvatron.predict,
    "other": torchtune.predict,
}
"""Column `profile` -> the runtime's moments."""

FITTED: tuple[Constant, ...] = (RESERVE, RESERVE_OF_2021, HOLES, OUTSIDE_OF_2021)
"""What predictions of rows depend on, and is fitted on rows."""


@dataclass(frozen=True)
class Prediction:
    """A row with an estimate."""

    row: Row
    allocated: int
    """Bytes at the moment that the quantity is of."""
    fixed: int
    """Bytes that the quantity has beside, without any constant."""
    moment: Moment
    moments: tuple[Moment, ...]

    def bytes(self, constants: Mapping[str, float]) -> int:
        """The prediction, with these values of the constants by name."""
        quantity = self.row["quantity"]
        if quantity == "peak_reserved":
            share, holes = constants[reserve_of(self.row).name], constants[HOLES.name]
            return round(max(moment.bytes * (1 + share) + moment.waiting * holes for moment in self.moments))
        if quantity == "device_used":
            return round(self.allocated + self.fixed + constants[OUTSIDE_OF_2021.name])
        return self.allocated


def reserve_of(row: Row) -> Constant:
    """The allocator's reserve of the time."""
    return RESERVE_OF_2021 if row.is_of_2021 else RESERVE


def values() -> dict[str, float]:
    """The constants as they stand."""
    return {constant.name: constant.value for constant in FITTED}


def _moments(row: Row) -> tuple[Moment, ...]:
    """Those of a step: what is measured is the peak of training, not of construction."""
    try:
        found = PROFILES[row["profile"]](row)
    except ArithmeticError as error:
        raise Unusable(f"its numbers do not go together: {error}") from error
    return tuple(moment for moment in found if moment.name != "construction")


def predict(row: Row) -> Prediction:
    """Raises Unusable with the reason."""
    if not row.flag("usable"):
        raise Unusable(row["why_not"] or "not marked usable")
    if row["profile"] not in PROFILES:
        raise Unusable(f"no profile for the runtime {row['profile'] or 'that is not stated'}")
    moments = _moments(row)
    quantity, worst = row["quantity"], max(moments, key=lambda moment: moment.bytes)
    if quantity == "states_allocated":
        worst = next(moment for moment in moments if moment.name == "gather")
    elif quantity not in ("peak_allocated", "peak_reserved", "fwd_peak", "device_used"):
        raise Unusable(f"no estimate of the quantity {quantity}")
    fixed = 0
    if quantity == "device_used":
        if row["profile"] != "deepspeed-0.4-pipe":
            raise Unusable("what lies outside of the allocator is not known for this runtime")
        # the model is built in fp32 on the device, and the allocator keeps what it had then (DeepSpeed 1611)
        fixed = 4 * deepspeed_2021.pipeline_work(row).quantities["rank"]
    return Prediction(row, worst.bytes, fixed, worst, moments)
