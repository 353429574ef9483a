"""The runner of runs of commands, which ``CommandRunConfig`` names. Planning them imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lit_transformers.command_runs.config import CommandRunConfig
from lit_transformers.command_runs.keys import folders_and_files, run_key
from lit_transformers.command_runs.short_run import (
    check,
    describe,
    measure_of_command,
    probe,
    protocol_notes,
    rehearse,
)
from lit_transformers.command_runs.source_folder import data_hash
from lit_transformers.config import Plain
from lit_transformers.runner import Runner, rates_in
from lit_transformers.training.stopping import Interrupted

__all__ = ["RUNNER"]

FREE: dict[str, Plain] = {"search": {}, "short": {}, "budgets": {}, "repeats_within": 0.0}
"""The fields that change no number of a run, as they are by default."""


def _changes_nothing(config: CommandRunConfig, baseline: CommandRunConfig) -> bool:
    """Whether two configs compute the same, as far as the suite can know of a command that it does not know."""
    return config.override(FREE) == baseline.override(FREE)


def _fit(
    config: CommandRunConfig,
    directory: Path,
    report: Callable[[Any], None] | None = None,
    *,
    wandb_config: Any = None,
    logger_config: Any = None,
) -> dict[str, Plain]:
    from lit_transformers.command_runs.fit import fit

    return fit(config, directory, report, wandb_config=wandb_config, logger_config=logger_config)


def _preload() -> None:
    """Imports the modules that runs need, once for all processes that are forked from this one."""
    import lit_transformers.command_runs.fit  # noqa: F401


def _source_files(config: CommandRunConfig) -> list[Path]:
    return [Path(path) for path in folders_and_files(config)]


RUNNER = Runner(
    CommandRunConfig,
    Interrupted,
    run_key,
    describe,
    _changes_nothing,
    _fit,
    probe,
    check,
    preload=_preload,
    data_content=data_hash,
    measure_of=measure_of_command,
    source_files=_source_files,
    rehearse=rehearse,
    protocol_notes=protocol_notes,
    rate_fields=lambda config: rates_in(config.params, "params"),
    measured_on_split=lambda config, metric: metric in config.metrics,
    named_on=lambda metric, split: metric,
    resumes=lambda config: config.resume == "folder",
)
