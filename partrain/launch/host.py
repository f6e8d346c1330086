"""What the kernel says about this host: cores, memory. Standard library only; unknown is None."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from partrain.units import format_bytes

_LITTLE_DISK_BYTES = 64 * 2**20
_CGROUP = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores that this process may use: its affinity, cut by the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quotas = [quota for quota in map(_core_quota, _groups("cpu")) if quota is not None]
    return max(1, int(min([allowed, *quotas])))


def memory_bytes() -> int | None:
    """Memory of this host, cut by the limit of this process's control group."""
    limits = [limit for limit in map(_memory_limit, _groups("memory")) if limit is not None]
    installed = _meminfo("MemTotal") or _pages("SC_PHYS_PAGES")
    return min([installed, *limits]) if installed else None


def free_memory_bytes() -> int | None:
    """Memory that a new process could get without swapping; control groups are not looked at."""
    return _meminfo("MemAvailable") or _pages("SC_AVPHYS_PAGES")


def num_oom_kills() -> int:
    """Processes that this kernel has killed for want of memory so far; 0 where it does not count."""
    for line in _text(Path("/proc/vmstat")).splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def disk_shortage(folder: Path, *, little_bytes: int = _LITTLE_DISK_BYTES) -> str:
    """What to say of the disk that holds `folder` if less than `little_bytes` are free there; else empty."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f"free disk space in {folder} now {format_bytes(free)}" if free < little_bytes else ""


def _meminfo(name: str) -> int | None:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024  # "kB" there means KiB
    return None


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _groups(controller: str) -> list[Path]:
    """Folders of the control groups that hold this process, its own first, the root last; both versions."""
    found = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP / controller if controllers else _CGROUP
        own = root / name.lstrip("/")
        found += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return found


def _core_quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split() or [  # version 2, or the two files of version 1
        _text(group / "cpu.cfs_quota_us").strip(),
        _text(group / "cpu.cfs_period_us").strip(),
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def _memory_limit(group: Path) -> int | None:
    limit = _text(group / "memory.max").strip() or _text(group / "memory.limit_in_bytes").strip()
    return int(limit) if limit.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
