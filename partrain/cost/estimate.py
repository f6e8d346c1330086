"""An estimate: what each rank holds at each moment, term by term. Sizes are integer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

WAITING = "of other micro-batches"
"""How names of terms end whose bytes wait for their backward pass while another micro-batch is in work."""


@dataclass(frozen=True)
class Term:
    """One part of what is alive at a moment."""

    name: str
    bytes: int
    formula: str
    """How the bytes come about, in words with their numbers."""
    source: str = ""
    """Where the rule comes from."""


@dataclass(frozen=True)
class Moment:
    """A point of a step, and all that is alive there in the allocator."""

    name: str
    terms: tuple[Term, ...]
    at: str = ""
    """The operator that is the worst of this moment, where it is a walk over operators."""

    @cached_property
    def bytes(self) -> int:
        """The sum of the terms."""
        return sum(term.bytes for term in self.terms)

    @property
    def waiting(self) -> int:
        """Bytes that wait while another micro-batch is in work."""
        return sum(term.bytes for term in self.terms if term.name.endswith(WAITING))

    @property
    def by_name(self) -> Mapping[str, int]:
        """Term name -> bytes."""
        return {term.name: term.bytes for term in self.terms}


@dataclass(frozen=True, kw_only=True)
class StageEstimate:
    """The worst rank of a pipeline stage; its ranks differ by padding and by the ends of their shares."""

    stage: int
    first: int
    """First layer; layer 0 is the embedding, the last one the head."""
    last: int
    """Last layer, inclusive."""
    parameters: int
    """On each rank, padding of the vocabulary included."""
    moments: tuple[Moment, ...]
    replicated_bytes: int
    """Bytes at the worst moment that every data-parallel rank holds alike: what ZeRO could still share."""
    reserve_bytes: int
    """What the caching allocator holds beyond the peak."""
    outside_bytes: int
    """The device's context and the communicators: outside the allocator."""

    @cached_property
    def worst(self) -> Moment:
        """The moment that sets the peak."""
        return max(self.moments, key=lambda moment: moment.bytes)

    @property
    def peak_bytes(self) -> int:
        """The allocator's peak of allocated bytes; on CPUs the peak of live tensors."""
        return self.worst.bytes

    @property
    def reserved_bytes(self) -> int:
        """The caching allocator's peak of reserved bytes."""
        return self.peak_bytes + self.reserve_bytes

    @property
    def device_bytes(self) -> int:
        """What the device has to have."""
        return self.reserved_bytes + self.outside_bytes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A job's memory."""

    stages: tuple[StageEstimate, ...]
    host: tuple[Term, ...]
    """Host memory of one node, all its ranks together."""
    checkpoint_bytes: int
    """Bytes of one checkpoint on disk: weights, master weights and optimizer states, each once."""
    assumptions: tuple[str, ...]
    """What was taken for granted, in sentences."""

    @cached_property
    def worst(self) -> StageEstimate:
        """The stage whose ranks need the largest device."""
        return max(self.stages, key=lambda stage: stage.device_bytes)

    @property
    def peak_bytes(self) -> int:
        """The allocator's peak on the worst rank."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def device_bytes(self) -> int:
        """What the largest device has to have."""
        return self.worst.device_bytes

    @property
    def host_bytes(self) -> int:
        """Host memory of one node."""
        return sum(term.bytes for term in self.host)
