"""The files of runs that a command line names, of models of this library and of any LightningModule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lit_transformers.config import Config
from lit_transformers.plain_yaml import read_yaml

__all__ = ["read_run"]


def read_run(path: Path) -> Config:
    """Returns the config in a run's YAML file: that of a LightningModule where its model has a ``class_path``. Raises
    ConfigError for a file that is missing, damaged or wrong."""
    try:
        plain = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        plain = None  # which reading it as a config says in one line
    model = plain.get("model") if isinstance(plain, Mapping) else None
    if isinstance(model, Mapping) and "class_path" in model:
        from lit_transformers.lightning_runs import LightningRunConfig

        return LightningRunConfig.from_yaml(path)
    from lit_transformers.runs import RunConfig

    return RunConfig.from_yaml(path)
