"""The functions of runs that the processes of a study need. They are fields of an object, so that nobody has to know
which modules do a run.

A run's config class names its runner as ``module:attribute``. Plans hold this name, and processes receive it. Importing
the module of the name may import torch, and importing this module does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lit_transformers.config import Config, ConfigError, Plain, plain_leaves
from lit_transformers.plugins import load_plugins
from lit_transformers.records.context_losses import ContextLoss
from lit_transformers.records.measure import Goal, Measure
from lit_transformers.records.measurement import named_on, split_of
from lit_transformers.records.record import Gate
from lit_transformers.records.reference import Reference

__all__ = ["CachedPass", "Fit", "RetentionConfigs", "Runner", "load_runner", "rates_in", "runner_of"]


class Fit(Protocol):
    """Does a run in its directory and returns its record as its file holds it. ``report`` receives its progress;
    ``wandb_config`` says how it is sent to Weights & Biases, ``logger_config`` which loggers it has besides."""

    def __call__(
        self,
        config: Any,
        directory: Path,
        report: Callable[[Any], None] | None = None,
        *,
        wandb_config: Any = None,
        logger_config: Any = None,
    ) -> dict[str, Plain]: ...


def no_sources(config: Any) -> Mapping[str, Any]:
    """Returns nothing: these runs start from no other runs."""
    return {}


RATE_NAMES = ("lr", "learning_rate", "learning-rate")
"""The names of a learning rate in programs and modules of others."""


def rates_in(arguments: Mapping[str, Plain], path: str) -> list[str]:
    """Returns the paths of the arguments below a path that are named as a learning rate is, and are numbers."""
    return [
        f"{path}.{name}"
        for name, value in plain_leaves(arguments)
        if name.rpartition(".")[2] in RATE_NAMES and isinstance(value, float)
    ]


def no_rate_fields(config: Any) -> Sequence[str]:
    """Returns nothing: these runs have no learning rate that the suite knows of."""
    return ()


def no_retention(config: Any, measured: Any) -> RetentionConfigs | None:
    """Raises ConfigError: the runner cannot measure retention."""
    raise ConfigError("the runner of these runs cannot measure retention; drop it", "retention")


def no_training_key(config: Any) -> str | None:
    """Returns None: no run takes over the training of another."""
    return None


def no_data_content(config: Any) -> str | None:
    """Returns None: nothing identifies the data of these runs."""
    return None


def no_references(config: Any, metric: str) -> Sequence[Reference]:
    """Returns nothing: no value of the metric is known before anything is trained."""
    return ()


def no_floors(config: Any, metric: str) -> Sequence[Reference]:
    """Raises ConfigError: the runner has no simple predictors."""
    raise ConfigError("the runner of its runs has no simple predictors")


def no_document_floors(config: Any, metric: str) -> Sequence[Reference]:
    """Returns nothing: no simple predictor sees more than a run does."""
    return ()


def no_learning_metrics(config: Any) -> Mapping[str, Goal]:
    """Returns nothing: no metric is known to say how well these runs learn their objective."""
    return {}


def no_visible_context(config: Any) -> Plain:
    """Returns None: floors do not depend on how much of its data a run sees."""
    return None


def no_context_losses(checkpoint: Path) -> Sequence[ContextLoss]:
    """Raises ConfigError: the runner cannot cut the context of a network."""
    raise ConfigError("the runner of its runs cannot cut the context of a network")


def no_smallest_reach(configs: Sequence[Any]) -> int | None:
    """Returns None: nothing is known of how far back the networks of these runs see."""
    return None


def no_measure(config: Any, metric: str) -> Measure | None:
    """Returns None: the metrics of a record and their goals are unknown before it exists."""
    return None


def no_rehearsal(config: Any) -> None:
    """Does nothing: no fault at the end of such a run is known before its end."""


def no_cached_pass(config: Any) -> CachedPass | None:
    """Returns None: nothing that these runs compute is cached for others."""
    return None


def no_source_files(config: Any) -> Sequence[Path]:
    """Returns nothing: all code of these runs is the suite's, or of the package of the runner."""
    return ()


def no_protocol_notes(config: Any) -> Sequence[str]:
    """Returns nothing: the configs of these runs say how they are done."""
    return ()


def is_of_split(config: Any, metric: str) -> bool:
    """Whether a metric is measured on a split, by its name."""
    return split_of(metric) is not None


def always_resumes(config: Any) -> bool:
    """Returns True: a run that was stopped resumes from its checkpoint."""
    return True


def no_preload() -> None:
    """Does nothing: a run begins with the imports of its module."""


class CachedPass(NamedTuple):
    """A forward pass that the first of several runs computes, and whose outputs all of them read from a cache. name:
    equal for the runs that share it. tokens: the number of tokens that it reads. flops_per_token: of the layers that it
    computes."""

    name: str
    tokens: int
    flops_per_token: float

    @property
    def flops(self) -> float:
        """The FLOPs of the pass."""
        return self.tokens * self.flops_per_token


class RetentionConfigs(NamedTuple):
    """The configs of the runs that measure retention before and after another run."""

    before: Any
    after: Any


@dataclass(frozen=True)
class Runner:
    """The functions that do runs of one class of config.

    run_key: names a run. training_key: names the training of a run, which runs share that only differ in how they are
    measured; None where no run takes over the training of another. sources: returns the configs of the runs that a run
    starts from itself, which are done first, by the fields that they stand in. data_content: identifies the content of
    the data that a run reads, as the fingerprint in its record does. describe: returns a NamedTuple of its cost.
    changes_nothing: whether a config computes the same numbers as another one. fit: does the run, and raises
    ``interrupted`` if it was stopped with a checkpoint.
    probe: measures a training step and returns its ``seconds`` and its ``memory`` in bytes. check: returns the gates.
    references: returns the values of a metric of a record, by its name, that are known before any training. floors:
    returns the values of it that simple predictors reach, and raises an error of one line where there are none.
    learning_metrics: returns the metrics of a record that say how well a run has learned its objective, with their
    goals, the main one first; nothing of a run that trains nothing. visible_context: identifies how much of its data a
    run sees: runs of the same data that differ in it have separate floors. document_floors: returns the values of
    predictors that see more, all of a document, which are shown and decide nothing.
    context_losses: measures the language model of a checkpoint with its context cut to rising lengths, and raises such
    an error for any other.
    smallest_reach: returns the smallest number of symbols back that any of these runs sees, if this number differs
    between the first run, the baseline's, and some of the others, and else None.
    measure_of: returns the unit and the goal of a metric of a record by its name, None where the code of the run does
    not state them, and raises ConfigError for one that no record of such a run holds.
    source_files: returns files of code that are no part of the suite.
    rehearse: raises ConfigError for a fault that a run would only meet at its first or its last validation.
    retention: returns, for the config of a run and the config of a measurement, the configs of the runs that measure
    the weights that the first stage of the run starts from, and the weights that the run ends with; None where it
    starts from none.
    cached_pass: returns the forward pass that a run computes only if the cache of this machine lacks its outputs; None
    if the run caches nothing.
    rate_fields: returns the paths of the learning rates of a run, all of which a run at another rate multiplies.
    placement_fields: the fields of ranks and loader processes, on which the numbers of a run do not depend.
    preload: computes once, for the process from which runs are forked, the values that every run would compute again.
    protocol_notes: returns how runs are done, in a few words each, which a plan says.
    measured_on_split: whether a metric is measured on a split, so that a search can select on one and report another.
    named_on: returns the name that a metric of a record has where another split is measured.
    resumes: whether a stopped run resumes instead of starting anew.
    """

    config: type[Config]
    interrupted: type[Exception]
    run_key: Callable[[Any], str]
    describe: Callable[[Any], Any]
    changes_nothing: Callable[[Any, Any], bool]
    fit: Fit
    probe: Callable[[Any], Any]
    check: Callable[[Any], Sequence[Gate]]
    references: Callable[[Any, str], Sequence[Reference]] = no_references
    training_key: Callable[[Any], str | None] = no_training_key
    data_content: Callable[[Any], str | None] = no_data_content
    floors: Callable[[Any, str], Sequence[Reference]] = no_floors
    context_losses: Callable[[Path], Sequence[ContextLoss]] = no_context_losses
    smallest_reach: Callable[[Sequence[Any]], int | None] = no_smallest_reach
    preload: Callable[[], None] = no_preload
    measure_of: Callable[[Any, str], Measure | None] = no_measure
    source_files: Callable[[Any], Sequence[Path]] = no_source_files
    rehearse: Callable[[Any], None] = no_rehearsal
    sources: Callable[[Any], Mapping[str, Any]] = no_sources
    retention: Callable[[Any, Any], RetentionConfigs | None] = no_retention
    cached_pass: Callable[[Any], CachedPass | None] = no_cached_pass
    visible_context: Callable[[Any], Plain] = no_visible_context
    document_floors: Callable[[Any, str], Sequence[Reference]] = no_document_floors
    learning_metrics: Callable[[Any], Mapping[str, Goal]] = no_learning_metrics
    rate_fields: Callable[[Any], Sequence[str]] = no_rate_fields
    placement_fields: Sequence[str] = ()
    protocol_notes: Callable[[Any], Sequence[str]] = no_protocol_notes
    measured_on_split: Callable[[Any, str], bool] = is_of_split
    named_on: Callable[[str, str], str] = named_on
    resumes: Callable[[Any], bool] = always_resumes

    def earlier(self, config: Any) -> list[Any]:
        """Returns the configs of all runs that have to be done before a run, each once and after those that it starts
        from itself."""
        earlier: dict[Any, None] = {}
        for source in self.sources(config).values():
            earlier |= dict.fromkeys([*self.earlier(source), source])
        return [*earlier]


def runner_of(config: Config) -> str:
    """Returns the name of the runner of a config's runs. Raises ConfigError where it is not the config of a run."""
    name: str | None = getattr(type(config), "runner", None)
    if name is None:
        raise ConfigError(f"{type(config).__name__} is not the config of a run: its class names no runner")
    return name


def load_runner(name: str) -> Runner:
    """Returns the runner of a name such as ``package.module:RUNNER``, which imports its module and all plug-ins."""
    load_plugins()
    module, _, attribute = name.partition(":")
    runner: Runner = getattr(importlib.import_module(module), attribute)
    return runner
