"""Formats amounts and values for people, in three digits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def count(value: float | None) -> str:
    """Formats a count with a decimal prefix, 492000 as 492 k, or as a dash where it is unknown."""
    if value is None:
        return "-"
    return scaled(value, 1000, ("", "k", "M", "G", "T", "P", "E", "Z")).strip()


def memory(amount: float) -> str:
    """Formats bytes with a binary prefix, 492000 as 480 KiB."""
    return scaled(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")).strip()


def scaled(value: float, base: float, units: Iterable[str]) -> str:
    """Formats a value in the largest of the units that it fills; each unit is ``base`` times the one before."""
    names = list(units)
    power = min(len(names) - 1, int(math.log(max(abs(value), 1.0), base) + 1e-9))
    # 999.96 thousand would be printed as 1000 k
    if power < len(names) - 1 and float(f"{abs(value) / base**power:.3g}") >= base:
        power += 1
    if power == 0:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    digits = abs(value) / base**power
    return f"{value / base**power:.{max(0, 2 - int(math.log10(digits)))}f} {names[power]}"


def assignments(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields settings as they are written on a command line, path=value, with floats in three digits."""
    for path, value in values.items():
        if isinstance(value, float):
            yield f"{path}={value:.3g}"
        else:
            yield f"{path}={value if isinstance(value, str) else json.dumps(value)}"


def clock(seconds: float | None) -> str:
    """Formats seconds as 1:05 or 2:03:04, or as a dash where they are unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
