"""`builtin:python-source`: the running Python's standard library as text, a token a byte.

Real text on every machine without a download. The same Python has the same text, so the ranks of one
machine agree; what belongs to a single installation (site-packages, build settings) is left out.
"""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from partrain.data.faults import data_error
from partrain.errors import DataError

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
_SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")
VOCAB_SIZE = 256


@dataclass(frozen=True)
class SourceFile:
    """A file of the corpus and its size in bytes."""

    path: Path
    num_bytes: int


def source_files(root: Path | None = None) -> tuple[SourceFile, ...]:
    """The corpus in its order: by relative path, with `/` between names. Only looks at sizes.

    Raises DataError where the standard library is not a folder of .py files (a zipped or frozen Python).
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    found: dict[str, str] = {}
    start = len(str(root)) + 1
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith(_SKIPPED_PREFIXES):
                path = os.path.join(folder, name)
                found[path[start:].replace(os.sep, "/")] = path
    files = (SourceFile(Path(found[name]), os.stat(found[name]).st_size) for name in sorted(found))
    try:
        corpus = tuple(file for file in files if file.num_bytes)
    except OSError as error:
        raise _unusable(f"{error.filename}: {error.strerror}") from error
    if not corpus:
        raise _unusable(f"this Python has no .py files under {root} (zipped or frozen?)")
    return corpus


def read_bytes() -> bytes:
    """The corpus, its files joined.

    Raises DataError when a file cannot be read.
    """
    try:
        return b"".join(file.path.read_bytes() for file in source_files())
    except OSError as error:
        raise _unusable(f"{error.filename}: {error.strerror}") from error


def _unusable(message: str) -> DataError:
    return data_error(message, fix="data.train: synthetic, or a token file")
