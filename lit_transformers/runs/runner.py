"""The runner of the library's own runs, which ``RunConfig`` names."""

from __future__ import annotations

from collections.abc import Sequence

from lit_transformers.config import Plain
from lit_transformers.gates import gates
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.records.record import Gate
from lit_transformers.runner import Runner
from lit_transformers.runs import Interrupted, RunConfig, describe, fit, run_key
from lit_transformers.runs.config import references
from lit_transformers.runs.cut_context import context_losses
from lit_transformers.runs.feature_pass import feature_pass
from lit_transformers.runs.held_out import held_out_gates
from lit_transformers.runs.keys import PLACEMENT_FIELDS, code_of, training_key
from lit_transformers.runs.metrics import learning_metrics, measure_of_run
from lit_transformers.runs.probe import probe
from lit_transformers.runs.reach import smallest_reach, visible_context
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.runs.retention import retention_configs
from lit_transformers.runs.run_floors import document_floors, floors
from lit_transformers.runs.stages import source_runs
from lit_transformers.runs.weight_reuse import takes_over

__all__ = ["RUNNER"]


def _check(config: RunConfig) -> Sequence[Gate]:
    return [*gates.check(config.model), *held_out_gates(config)]


def _training_key(config: RunConfig) -> str | None:
    """Returns the key under which a run takes over the training of another run; None where it trains by itself."""
    return training_key(config, config.build_data()) if takes_over(config) else None


def _data_content(config: RunConfig) -> str:
    return config.build_data().content


def _visible_context(config: RunConfig) -> Plain:
    context = visible_context(config)
    return None if context is None else [*context]


def _read_code() -> None:
    """Reads the code that nearly all runs depend on, which takes half a second of each process that needs a key."""
    code_of(RunConfig())


def _rate_fields(config: RunConfig) -> Sequence[str]:
    """Returns the rate of the optimizer, which groups of parameters multiply; nothing of a run that trains nothing."""
    return ("training.optimizer.learning_rate",) if config.training.steps else ()


RUNNER = Runner(
    RunConfig,
    Interrupted,
    run_key,
    describe,
    changes_nothing,
    fit,
    probe,
    _check,
    references,
    _training_key,
    _data_content,
    floors,
    context_losses,
    smallest_reach,
    _read_code,
    measure_of_run,
    rehearse=rehearse,
    sources=source_runs,
    retention=retention_configs,
    cached_pass=feature_pass,
    visible_context=_visible_context,
    document_floors=document_floors,
    learning_metrics=learning_metrics,
    rate_fields=_rate_fields,
    placement_fields=PLACEMENT_FIELDS,
)
