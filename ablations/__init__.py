"""Ablation studies: what is varied, what is held fixed and which metric decides. Each file in ``studies`` is one.

The names below are what a script or a notebook uses. Each is imported when it is first used, so that commands import no
more than they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablations.ablation import Ablation, Contrast, Looks, Margin, Match, Metric, Scale
    from ablations.api import comparisons, run_study

__all__ = ["Ablation", "Contrast", "Looks", "Margin", "Match", "Metric", "Scale", "comparisons", "run_study"]

PLACES = {"comparisons": "api", "run_study": "api"}
"""The modules of the names that are not of ``ablation``."""


def __getattr__(name: str) -> Any:
    """Imports a name of the front door (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PLACES.get(name, 'ablation')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
