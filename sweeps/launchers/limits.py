"""Parses and writes amounts as users type them: ``2h`` or ``90m`` of time, ``2GiB`` or ``512MB`` of memory."""

from __future__ import annotations

import re

from lit_transformers.config import ConfigError

__all__ = ["is_count", "parse_bytes", "parse_count", "parse_seconds", "write_bytes", "write_seconds"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

_LONGEST, _LARGEST, _DIGITS = 1e10, 1e18, 18
"""Seconds of three hundred years, the bytes of an exabyte, and the most digits of a count."""


def is_count(text: str) -> bool:
    """Whether a text is a whole number, in decimal digits, that a machine could have of something."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def parse_count(text: str, noun: str, name: str) -> int:
    """Returns a count of at least 1. noun: the things that are counted. Raises ConfigError at the option ``name``."""
    if not (is_count(text) and int(text) > 0):
        raise ConfigError(f"wants a number of {noun} from 1 on, not {text!r}", name)
    return int(text)


def parse_seconds(text: str, name: str) -> float:
    """Returns the seconds of ``2h``, ``1h30m``, ``45s`` or a bare number.

    Raises ConfigError at the option ``name``.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise ConfigError(f"{text!r} is no time; write 45s, 90m, 2h or 1h30m", name)
    total = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if not 0 < total <= _LONGEST:
        reason = "leaves no time at all" if total <= 0 else "is longer than any machine runs"
        raise ConfigError(f"{text!r} {reason}", name)
    return total


def parse_bytes(text: str, name: str) -> int:
    """Returns the bytes of ``2GiB``, ``512MB`` or ``1.5G``. Raises ConfigError at the option ``name``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not match or match[2] not in _BYTES:
        raise ConfigError(f"{text!r} is no amount of memory; write 2GiB or 512MB", name)
    amount = float(match[1]) * _BYTES[match[2]]
    if not 1 <= amount <= _LARGEST:
        reason = "leaves no memory at all" if amount < 1 else "is more than any machine has"
        raise ConfigError(f"{text!r} {reason}", name)
    return int(amount)


def write_seconds(seconds: float) -> str:
    """Writes seconds in the shortest exact form: 2h, 1h30m, 45s."""
    remaining, parts = round(seconds, 3), []
    for unit in ("d", "h", "m"):
        quantity, remaining = divmod(remaining, _SECONDS[unit])
        parts += [f"{quantity:.0f}{unit}"] if quantity else []
    return "".join(parts + ([f"{remaining:g}s"] if remaining or not parts else []))


def write_bytes(amount: float) -> str:
    """Writes bytes in GiB, or in MiB where they are less than one GiB."""
    return f"{amount / (1 << 30):.3g} GiB" if amount >= 1 << 30 else f"{amount / (1 << 20):.3g} MiB"
