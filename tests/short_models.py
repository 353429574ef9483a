"""Models whose rows are short: tests of a mechanism are cheap with few tokens."""

from __future__ import annotations

from typing import Any, TypeVar

from lit_transformers.config import ConfigError, Length
from lit_transformers.models import ModelConfig

M = TypeVar("M", bound=ModelConfig)

LONGEST = 8
"""The greatest length that a short model names, in tokens: the rows of its probe are of the shortest."""


def short(config: M) -> M:
    """Returns the model with every length that it names (a window, a block, a rank) at most ``LONGEST``.

    No mechanism is switched off. Where lengths must divide each other and no longer would, all stay as they are.
    """
    try:
        return config.override({path: cut(value) for path, value in config.leaves_with(Length)})
    except ConfigError:
        return config


def cut(value: Any) -> Any:
    """Returns a field's value with each of its integers at most ``LONGEST``."""
    if isinstance(value, tuple):
        return tuple(cut(item) for item in value)
    return min(value, LONGEST) if type(value) is int else value
