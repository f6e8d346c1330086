"""How far estimates were from what was measured: the one place for these numbers."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "published measurements in bench/data/memory_measured.csv, by bench/memory_accuracy.py"


@dataclass(frozen=True)
class Seen:
    """Errors over the measured rows of one kind."""

    what: str
    rows: int
    mean: float
    """Mean of the absolute errors, a part of what was measured."""
    worst: float
    """The largest of them."""

    def words(self) -> str:
        """It in few words."""
        return f"{self.what}: mean {self.mean:.1%}, worst {self.worst:.1%} of {self.rows} rows"


SEEN = (
    Seen("allocated by DeepSpeed", 30, 0.0030, 0.0183),
    Seen("reserved", 15, 0.0173, 0.0409),
    Seen("in use by nvidia-smi", 22, 0.0483, 0.2504),
)


def error_words() -> str:
    """The errors that were seen, in words."""
    return "; ".join(seen.words() for seen in SEEN) + f" ({SOURCE})"
