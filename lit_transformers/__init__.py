"""Transformer variants, their training and measurement, and the runs of single variants.

The names below are the front door of the library. Each is imported when it is first used, so that importing the package
imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_transformers.lazy_names import lazy_names

if TYPE_CHECKING:
    from ablations.api import comparisons, run_study
    from lit_transformers.api import allow_modules, build_model, evaluate, fit, generate, load_checkpoint, probe_layers
    from lit_transformers.config import Config, ConfigError
    from lit_transformers.runs.config import RunConfig

__all__ = [
    "Config",
    "ConfigError",
    "RunConfig",
    "allow_modules",
    "build_model",
    "comparisons",
    "evaluate",
    "fit",
    "generate",
    "load_checkpoint",
    "probe_layers",
    "run_study",
]

STUDIES = "ablations.api"
"""The module of the functions for studies. The library itself knows nothing of studies."""
MODULES = dict.fromkeys(__all__, ".api") | {
    "Config": ".config",
    "ConfigError": ".config",
    "RunConfig": ".runs.config",
    "comparisons": STUDIES,
    "run_study": STUDIES,
}
__getattr__, __dir__ = lazy_names(__name__, MODULES)
