"""A process that is asked on standard input and says what there is to say on standard output, a line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from partrain.errors import PartrainError
from partrain.run.sampling import Refused, Said, to_line


def speak(words: Callable[[str], Iterator[Said]]) -> int:
    """Say what `words` makes of the request; the process's exit code."""
    # What libraries print to standard output goes where their warnings go.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            for said in words(sys.stdin.read()):
                output.write(to_line(said))
                output.flush()
        except PartrainError as error:
            output.write(to_line(Refused(error.message, error.hint, error.exit_code)))
            return error.exit_code
    return 0
