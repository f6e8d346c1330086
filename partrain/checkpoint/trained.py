"""What a checkpoint says of the model that it holds: all that is needed to use it, whatever trained it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from partrain.checkpoint.manifest import Manifest
from partrain.errors import CheckpointError
from partrain.model.decoder import decoder_weights
from partrain.spec.facts import DatasetFacts
from partrain.spec.model import ModelSpec
from partrain.spec.section import Count, Text
from partrain.spec.training import Precision
from partrain.spec.values import read

T = TypeVar("T")
Source = Text | None


@dataclass(frozen=True)
class Trained:
    """A model, and what it was trained with."""

    model: ModelSpec
    data: DatasetFacts
    sequence_length: int
    precision: Precision
    source: str | None
    """Absolute path of the folder that training started from; None: weights began at random."""

    @property
    def context(self) -> int:
        """Tokens that it has ever seen at once."""
        return min(self.sequence_length, self.model.max_positions)

    @property
    def vocabulary(self) -> int:
        """Tokens that its data has; the model may have rows for more, which nothing was learnt of."""
        return min(self.data.vocab_size or self.model.vocab_size, self.model.vocab_size)


def trained(manifest: Manifest) -> Trained:
    """The model of a checkpoint.

    Raises CheckpointError where its plan cannot be read, or is of other weights than those that are stored.
    """
    found = Trained(
        model=_read(ModelSpec, manifest, "model"),
        data=_read(DatasetFacts, manifest, "data"),
        sequence_length=_read(Count, manifest, "training", "sequence_length"),
        precision=_read(Precision, manifest, "training", "precision"),  # type: ignore[arg-type]
        source=_read(Source, manifest, "weights"),  # type: ignore[arg-type]
    )
    if found.model.num_layers > len(manifest.weights):  # before as many are counted up
        raise CheckpointError("the manifest is wrong: its plan's model has more layers than it has weights")
    for weight in decoder_weights(found.model):
        stored = manifest.weights.get(weight.name)
        if weight.tied_to is None and (stored is None or stored.shape != weight.shape):
            raise CheckpointError(f"the manifest is wrong: its {weight.name} is not that of its plan's model")
    return found


def _read(kind: type[T], manifest: Manifest, *path: str) -> T:
    """A value of the manifest's plan."""
    value: Any = manifest.plan
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    try:
        return read(kind, value)
    except ValueError as error:
        raise CheckpointError(
            f"the plan in it cannot be read: {'.'.join(path)}: {error}",
            hint="it was written by another version of partrain: read it with that one",
        ) from error
