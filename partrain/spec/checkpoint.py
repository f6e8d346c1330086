"""When the training is saved, and which checkpoints stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from partrain.spec.section import Bounds, Count

TIME = r"^[1-9][0-9]{0,4}[mh]$"
Time = Annotated[str, Bounds(pattern=TIME)]
"""Minutes or hours: `30m`, `2h`."""
OnFailure = Literal["continue", "stop"]
Export = Literal["none", "hf"]


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """The `checkpoint` section."""

    every: Count | Time | Literal["auto", "none"] = "30m"
    """Steps, or a time, between saves; auto: from what a save costs and how often runs fail; none: nothing is
    saved. A run is saved at its end too, and when it is stopped."""
    keep: Count = 2
    """Newest checkpoints that stay."""
    keep_every: Count | None = None
    """A checkpoint is made every so many steps and stays for good."""
    on_failure: OnFailure = "continue"
    """What a save that fails does to the run: it goes on, or it stops."""
    export: Export = "none"
    """What the last checkpoint of a run that is done is written as too, in the run's folder; hf: as a folder
    that transformers loads."""
