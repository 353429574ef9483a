"""The files of runs that a command line names: of models of this library, of any LightningModule, of any command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lit_transformers.class_path import class_path_of
from lit_transformers.config import Config, Plain
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.trust import require_allowed

__all__ = ["read_run", "run_class"]


def read_run(path: Path) -> Config:
    """Returns the config in a run's YAML file. Raises ConfigError for a file that is missing, damaged or wrong, and for
    one that names a class which it may not."""
    try:
        plain = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        plain = None  # which reading it as a config says in one line
    require_allowed(plain, str(path))
    return run_class(plain).from_yaml(path)


def run_class(plain: Plain) -> type[Config]:
    """Returns the class of a run's config, given as plain data: that of a LightningModule where its model has a
    ``class_path``, that of a command where it has one."""
    if isinstance(plain, Mapping) and "command" in plain:
        from lit_transformers.command_runs import CommandRunConfig

        return CommandRunConfig
    if class_path_of(plain) is not None:
        from lit_transformers.lightning_runs import LightningRunConfig

        return LightningRunConfig
    from lit_transformers.runs import RunConfig

    return RunConfig
