"""How the processes are started, where the run is kept, what is shown."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from partrain.spec.section import Count, Section

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class LaunchSection(Section):
    """The `launch` section."""

    backend: Literal["local"] = "local"
    """Where the processes run."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Environment variables of every rank."""


class RunSection(Section):
    """The `run` section."""

    dir: Annotated[str, Field(min_length=1)] = "runs"
    """Folder that holds the runs."""


class MonitorSection(Section):
    """The `monitor` section."""

    log_every: Count = 1
    """Steps between console lines and TensorBoard points; metrics.jsonl has every step."""
