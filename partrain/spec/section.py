"""What every section of a job file has in common: frozen, strict, unknown keys refused.

The types here carry their bounds, so that one table (`spec/faults.py`) can say in words what a field
allows; no validator changes a value.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping of the job file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
