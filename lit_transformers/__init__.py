"""Transformer variants, how they are trained and measured, and what one run of them is.

The names below are the front door of the library. Each is imported when it is first used, so that importing the package
imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_transformers.api import build_model, evaluate, fit, generate, load_checkpoint
    from lit_transformers.config import Config, ConfigError
    from lit_transformers.runs.config import RunConfig

__all__ = [
    "Config",
    "ConfigError",
    "RunConfig",
    "build_model",
    "evaluate",
    "fit",
    "generate",
    "load_checkpoint",
]

PLACES = {"Config": "config", "ConfigError": "config", "RunConfig": "runs.config"}
"""The modules of the names that are not of ``api``."""


def __getattr__(name: str) -> Any:
    """Imports a name of the front door (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PLACES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
