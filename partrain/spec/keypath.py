"""Where a value stands among others: its key path."""

from __future__ import annotations

Loc = tuple[str | int, ...]
"""Keys and indices: `("training", "optimizer", "betas", 0)`."""


def dotted(loc: Loc) -> str:
    """`loc` as people write it.

    >>> dotted(("training", "optimizer", "betas", 0))
    'training.optimizer.betas.0'
    """
    return ".".join(str(part) for part in loc)
