"""The process that samples, as the command sees it."""

from __future__ import annotations

from collections.abc import Iterator

from partrain.errors import RunError
from partrain.launch.answer import Answerer
from partrain.run.sampling import Drawn, Ready, SampleRequest


class Sampler(Answerer):
    """A process that samples; it ends with the context."""

    def __init__(self, request: SampleRequest) -> None:
        super().__init__("partrain.engine.sample", request.to_json(), called="the process that samples")

    def ready(self) -> Ready:
        """Wait until it has the model. Raises as `tokens` does."""
        for said in self.said:
            assert isinstance(said, Ready)
            return said
        raise RunError("the process that samples ended without a word")

    def tokens(self) -> Iterator[int]:
        """What it draws, each token as it comes; after `ready`.

        Raises what it refuses with, and RunError where it ends by itself.
        """
        for said in self.said:
            assert isinstance(said, Drawn)
            yield said.token
