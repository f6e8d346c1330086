"""The agent's two pipes to its supervisor: orders in, events out, a line each, nothing blocks."""

from __future__ import annotations

import os
import select
import time

_CHUNK_BYTES = 2**16
_FULL_BYTES = 2**20


class Channel:
    """Standard input and output of an agent.

    A terminal that was halted with Ctrl-S must not halt the watch over the ranks, so what cannot be
    written waits here.
    """

    def __init__(self, *, orders: int = 0, events: int = 1) -> None:
        self._orders = orders
        self._events = events
        self._inbox = b""
        self._outbox = bytearray()
        self.lost = False
        """Whether the supervisor is gone."""
        os.set_blocking(events, False)

    @property
    def full(self) -> bool:
        """Whether the supervisor reads too slowly; what can be left out should be."""
        return len(self._outbox) > _FULL_BYTES

    def first_line(self) -> bytes:
        """Wait for the first line; empty if none came."""
        while b"\n" not in self._inbox and not self.lost:
            self._read()
        line, _, self._inbox = self._inbox.partition(b"\n")
        return b"" if self.lost else line

    def send(self, line: bytes) -> None:
        """Write a line as soon as the pipe takes it."""
        self._outbox += line
        self._write()

    def exchange(self, seconds: float) -> tuple[bytes, ...]:
        """Write what waits, read what came, for `seconds` at most; returns the whole lines that came."""
        orders = [] if self.lost else [self._orders]
        events = [self._events] if self._outbox and not self.lost else []
        readable, writable, _ = select.select(orders, events, [], seconds)
        if writable:
            self._write()
        if readable:
            self._read()
        *lines, self._inbox = self._inbox.split(b"\n")
        return tuple(lines)

    def flush(self, seconds: float) -> None:
        """Write what waits, for `seconds` at most."""
        deadline = time.monotonic() + seconds
        while self._outbox and not self.lost and time.monotonic() < deadline:
            if select.select([], [self._events], [], 0.1)[1]:
                self._write()

    def _read(self) -> None:
        chunk = os.read(self._orders, _CHUNK_BYTES)
        self._inbox += chunk
        self.lost = self.lost or not chunk

    def _write(self) -> None:
        try:
            while self._outbox and not self.lost:
                del self._outbox[: os.write(self._events, self._outbox)]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads any more
            self.lost = True
