"""Options that are repeated, each with a name and a value."""

from __future__ import annotations

from collections.abc import Sequence

from lit_transformers.config import ConfigError

__all__ = ["pairs_of"]


def pairs_of(option: str, typed: Sequence[str] | None) -> dict[str, str]:
    """Returns the values of ``NAME=VALUE`` by name; a name may hold "=", a value may not. Raises ConfigError where one
    has no "="."""
    pairs = {}
    for one in typed or ():
        name, equals, value = one.rpartition("=")
        if not equals:
            raise ConfigError(f"{option} {one}: no value; write NAME=VALUE")
        pairs[name] = value
    return pairs
