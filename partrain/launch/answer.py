"""A process with torch that answers a command: started, listened to, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from partrain.errors import PartrainError, RunError
from partrain.launch.local import check_packages
from partrain.run.lifeline import dying_with
from partrain.run.module import module_command
from partrain.run.sampling import Refused, Said, said_in

_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin between the small products of one token take the cores from each other and from a
training beside: 200 tokens of a tiny model on 2 busy cores, with the start, took 11 s in place of 3 s."""
_LAST_LINES = 5
_TAIL_BYTES = 4096


_Kind = TypeVar("_Kind", bound="Answerer")


class Answerer:
    """A process that runs a module on a request; it ends with the context."""

    def __init__(self, module: str, request: str, *, called: str) -> None:
        """`request`: what it reads; `called`: its name in faults."""
        self._module, self._request, self._called = module, request, called

    def __enter__(self: _Kind) -> _Kind:
        """Start it. Raises LaunchError where a package that it needs is missing."""
        check_packages()
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            module_command(self._module),
            env={**_DEFAULTS, **os.environ, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C at the terminal reaches the command alone, which ends it
            preexec_fn=dying_with(os.getpid()),  # safe: a command has one thread
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as request:  # it tells why it ended
            request.write(self._request.encode())
        self.said = self._words()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdout, self._log):
            assert file is not None
            file.close()

    def _words(self) -> Iterator[Said]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = said_in(line)
            if isinstance(said, Refused):
                raise _refusal(said)
            yield said
        code = self._process.wait()
        if code:
            how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
            raise RunError("\n".join([f"{self._called} {how}", *self._last_lines()]))

    def _last_lines(self) -> list[str]:
        """The end of what it printed beside."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]


def _refusal(said: Refused) -> PartrainError:
    error = RunError(said.message, hint=said.hint)
    error.exit_code = said.exit_code
    return error
