"""notices.jsonl: what a run has to say to its user while it goes on, a line each."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from partrain.run.reading import known_keys, object_in
from partrain.run.records import Timestamp
from partrain.spec.values import read

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Notice:
    """One thing to tell."""

    message: str
    """One line."""
    time: Timestamp
    is_grave: bool = False
    """Whether something went wrong."""


class Notices:
    """Where they are written; without a path they go to the log alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(self, message: str, *, is_grave: bool = False) -> None:
        """Tell `message`. A disk that is full is no reason to end."""
        log.log(logging.WARNING if is_grave else logging.INFO, "%s", message)
        if self._path is None:
            return
        line = json.dumps(asdict(Notice(message, time.time(), is_grave)))
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            log.warning("%s: %s", self._path, error)


def notice_from(line: str | bytes) -> Notice | None:
    """The notice that a line spells; None: it is not one."""
    try:
        return read(Notice, known_keys(Notice, object_in(line)))
    except ValueError:
        return None
