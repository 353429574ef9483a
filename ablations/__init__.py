"""Ablation studies: the factors that vary, the values that are held fixed and the metric that decides. Each file in
``studies`` is one study.

Scripts and notebooks use the names below. Each name is imported when it is first used, so that commands import no more
than they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_transformers.lazy_names import lazy_names

if TYPE_CHECKING:
    from ablations.ablation import Ablation, Contrast, Looks, Margin, Match, Metric, Rates, Scale
    from ablations.api import comparisons, run_study

__all__ = ["Ablation", "Contrast", "Looks", "Margin", "Match", "Metric", "Rates", "Scale", "comparisons", "run_study"]

MODULES = dict.fromkeys(__all__, ".ablation") | {"comparisons": ".api", "run_study": ".api"}
__getattr__, __dir__ = lazy_names(__name__, MODULES)
