"""What `partrain check` says of this machine: whether a run could start here, row by row."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from partrain.errors import PartrainError
from partrain.launch.host import free_memory_bytes, memory_bytes, num_cores
from partrain.launch.local import (
    CUDA_HINT,
    OLDEST_DEEPSPEED,
    package_version,
    torch_has_cuda,
    version_numbers,
)
from partrain.launch.machine import find_machine
from partrain.units import format_bytes

_GIB = 2**30
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
# Lower bounds of the `train` extra.
_PACKAGES = {
    "torch": (2, 6),
    "deepspeed": OLDEST_DEEPSPEED,
    "tensorboard": (2, 16),
    "numpy": (1, 26),
    "safetensors": (0, 4, 5),
}
_INSTALL = "pip install 'partrain[train]'"
_FEW_FILES = 1024
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 1 * _GIB
_LITTLE_SHARED_MEMORY = 64 * 2**20


@dataclass(frozen=True)
class Row:
    """One thing looked at."""

    name: str
    value: str
    """What was found, in words."""
    ok: bool
    hint: str = ""
    """What to do about it where it is not."""


def check_machine(environ: Mapping[str, str]) -> tuple[Row, ...]:
    """What a run needs of this machine, without importing torch."""
    packages = tuple(_package(name, oldest) for name, oldest in _PACKAGES.items())
    return (_python(), _system(), *packages, _gpus(environ), *(row() for row in _RESOURCES))


def _python() -> Row:
    ok = _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON
    return Row("Python", platform.python_version(), ok, "" if ok else "use Python 3.10 to 3.13")


def _system() -> Row:
    ok = sys.platform in ("linux", "darwin")
    value = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return Row("system", value, ok, "" if ok else "runs need Linux, or macOS on CPU")


def _package(name: str, oldest: tuple[int, ...]) -> Row:
    version = package_version(name)
    if version is None:
        return Row(name, "not installed", False, _INSTALL)
    ok = version_numbers(version) >= oldest
    needed = ".".join(map(str, oldest))
    return Row(
        name, version, ok, "" if ok else f"{needed} or later is needed: pip install -U '{name}>={needed}'"
    )


def _gpus(environ: Mapping[str, str]) -> Row:
    try:
        machine = find_machine(environ)
    except PartrainError as error:
        return Row("GPUs", str(error), False, "see above")
    if machine.device == "cpu":
        return Row("GPUs", f"none: {machine.origin} runs jobs on CPU", True)
    memory = f", {format_bytes(machine.memory_bytes)} each" if machine.memory_bytes else ""
    value = f"{machine.num_devices} x {machine.name}{memory} ({machine.origin})"
    if torch_has_cuda():
        return Row("GPUs", value, True)
    return Row("GPUs", f"{value}; the installed torch is built without CUDA", False, CUDA_HINT)


def _cores() -> Row:
    return Row("cores", str(num_cores()), True)


def _memory() -> Row:
    total, free = memory_bytes(), free_memory_bytes()
    if total is None or free is None:
        return Row("memory", "not known", True)
    free = min(free, total)
    ok = free >= _LITTLE_MEMORY
    hint = (
        ""
        if ok
        else "each rank on CPU takes 0.5 GiB before the model: end other programs, or use fewer ranks"
    )
    return Row("memory", f"{format_bytes(free)} free of {format_bytes(total)}", ok, hint)


def _disk() -> Row:
    free = shutil.disk_usage(Path.cwd()).free
    ok = free >= _LITTLE_DISK
    return Row(
        "disk", f"{format_bytes(free)} free in {Path.cwd()}", ok, "" if ok else "free some, or set run.dir"
    )


def _shared_memory() -> Row:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Row("/dev/shm", "none", sys.platform != "linux", "" if sys.platform != "linux" else "mount it")
    ok = size >= _LITTLE_SHARED_MEMORY
    hint = "" if ok else "NCCL exchanges data through it: docker run --shm-size=1g"
    return Row("/dev/shm", format_bytes(size), ok, hint)


def _open_files() -> Row:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ok = limit == resource.RLIM_INFINITY or limit >= _FEW_FILES
    value = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}"
    return Row("open files", value, ok, "" if ok else f"ulimit -n {_FEW_FILES * 64}")


_RESOURCES: tuple[Callable[[], Row], ...] = (_cores, _memory, _disk, _shared_memory, _open_files)
