"""What will be started where, as a value: plain data that travels to each host as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class RankCommand:
    """One process."""

    rank: int
    label: str
    """Its place in words: `dp 0, pp 1, tp 0`."""
    argv: tuple[str, ...]
    """Program and arguments; no shell ever reads them."""
    env: Mapping[str, str]
    """What tells it from the other ranks, over the host's environment."""


@dataclass(frozen=True)
class Limits:
    """How long the agent waits for what, in seconds."""

    settle_s: float = 1.0
    """After the first failure, for the others to say why they end."""
    grace_s: float = 3.0
    """Between SIGTERM and SIGKILL."""
    save_s: float = 0.0
    """After an order to stop, for the ranks to save and leave; 0: nothing is saved."""
    hang_s: float = 30.0
    """After the last step or the first rank's end, for all ranks to end."""


@dataclass(frozen=True)
class HostScript:
    """What one host's agent is asked to do."""

    host: str
    folder: str
    """The run folder's path on that host."""
    plan: str
    """The plan's JSON, written into the run folder where there is none yet."""
    steps: int
    """Optimizer steps of the run: with the last one recorded, the training is done."""
    ranks: tuple[RankCommand, ...]
    env: Mapping[str, str]
    """Set for every rank, over the agent's own environment."""
    drop: tuple[str, ...]
    """Beginnings of names that ranks must not inherit: other launchers' words about other worlds."""
    choose_port: bool
    """Whether the agent picks a free port of its host as MASTER_PORT."""
    limits: Limits = field(default_factory=Limits)
    evaluates: bool = False
    """Whether an evaluation follows the last step."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostScript:
        """The script that `to_json` wrote.

        Raises ValueError, KeyError or TypeError on anything else.
        """
        value = json.loads(text)
        ranks = tuple(RankCommand(**{**item, "argv": tuple(item["argv"])}) for item in value["ranks"])
        changed = {"ranks": ranks, "drop": tuple(value["drop"]), "limits": Limits(**value["limits"])}
        return cls(**{**value, **changed})


@dataclass(frozen=True)
class LaunchScript:
    """A run's processes on all hosts."""

    hosts: tuple[HostScript, ...]
