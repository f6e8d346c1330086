"""Bytes, counts, FLOPs and seconds as people write them; the only place that prints or parses units.

Memory is binary (GiB = 2^30 bytes), rates and counts are decimal (TFLOP/s = 1e12, B = 1e9).
"""

from __future__ import annotations

import math
import re

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3))
_TIME = re.compile(r"(\d+(?:\.\d*)?)\s*(s|m|h|d)[a-z]*", re.IGNORECASE)
_TIME_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 1e11
"""Seconds that are told in days: some 3,000 years."""


def format_bytes(num_bytes: float) -> str:
    """`num_bytes` in the largest binary unit that keeps it at least 1.

    >>> format_bytes(1536), format_bytes(80 * 2**30)
    ('1.5 KiB', '80.0 GiB')
    """
    value, unit = float(num_bytes), _BINARY[0]
    for unit in _BINARY:
        if abs(value) < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def format_count(count: float) -> str:
    """`count` with a decimal suffix, three figures.

    >>> format_count(8030261248), format_count(950), format_count(124439808)
    ('8.03B', '950', '124M')
    """
    for suffix, scale in _DECIMAL:
        if abs(count) >= scale:
            value = count / scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f}{suffix}"
    return f"{count:.0f}"


def format_seconds(seconds: float) -> str:
    """A duration in the two largest units that matter.

    >>> format_seconds(0.0123), format_seconds(75), format_seconds(90061)
    ('12 ms', '1m 15s', '1d 1h')
    >>> format_seconds(float("nan"))
    'nan s'
    """
    if not abs(seconds) < _LONGEST_S:  # so says NaN too
        return f"{seconds:.3g} s"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    total = round(seconds)
    days, hours, minutes = total // 86400, total // 3600 % 24, total // 60 % 60
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {total % 60}s"


def parse_time(text: str) -> float:
    """Seconds of a time in minutes or hours.

    >>> parse_time("30m"), parse_time("2h")
    (1800.0, 7200.0)
    """
    return float(text[:-1]) * _TIME_S[text[-1]]


def nearest_time(text: str) -> str:
    """The time in whole minutes or hours that `text` comes closest to, no less; empty: it is no time.

    >>> [nearest_time(text) for text in ("30s", "30 min", "1.5 hours", "2 days", "soon", "0m")]
    ['1m', '30m', '90m', '48h', '', '']
    """
    match = _TIME.fullmatch(text.strip())
    minutes = math.ceil(float(match[1]) * _TIME_S[match[2].lower()] / 60) if match else 0
    if not 0 < minutes < 100_000:
        return ""
    return f"{minutes // 60}h" if minutes >= 120 and minutes % 60 == 0 else f"{minutes}m"
