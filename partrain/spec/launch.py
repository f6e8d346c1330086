"""How the processes are started, where the run is kept, what is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from partrain.spec.section import Bounds, Count, Text

EnvName = Annotated[str, Bounds(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


@dataclass(frozen=True, kw_only=True)
class LaunchSection:
    """The `launch` section."""

    backend: Literal["local"] = "local"
    """Where the processes run."""
    env: dict[EnvName, str] = field(default_factory=dict)
    """Environment variables of every rank."""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """The `run` section."""

    dir: Text = "runs"
    """Folder that holds the runs."""


@dataclass(frozen=True, kw_only=True)
class MonitorSection:
    """The `monitor` section."""

    log_every: Count = 1
    """Steps between console lines and TensorBoard points; metrics.jsonl has every step."""
    track_memory: bool = False
    """Whether CPU ranks count the bytes of their tensors, to be compared with the estimate; every operation
    takes longer. GPUs count them anyway."""
