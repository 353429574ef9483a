"""The runner of runs of LightningModules, which ``LightningRunConfig`` names."""

from __future__ import annotations

from collections.abc import Sequence

from lit_transformers.config import ConfigError
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.lightning_runs.first_batch import check, describe, measure_of_module
from lit_transformers.lightning_runs.fit import fit
from lit_transformers.lightning_runs.keys import data_content, run_key, source_files
from lit_transformers.lightning_runs.probe import probe
from lit_transformers.records.reference import Reference
from lit_transformers.runner import Runner, rates_in
from lit_transformers.training.stopping import Interrupted

__all__ = ["RUNNER"]


def _changes_nothing(config: LightningRunConfig, baseline: LightningRunConfig) -> bool:
    """Whether two configs compute the same, as far as the suite can know of classes that it does not know."""
    return config.override({"search": {}}) == baseline.override({"search": {}})


def _floors(config: LightningRunConfig, metric: str) -> Sequence[Reference]:
    """Returns the values of simple predictors that the data module states: ``floors(NAME)``, by name, of ``val/NAME``
    or ``test/NAME``."""
    data = config.data.build()
    floors = getattr(data, "floors", None)
    if floors is None:
        raise ConfigError("the data module has no method floors, and nothing else is known of its data")
    values = floors(metric.removeprefix("val/").removeprefix("test/"))
    if not values:
        raise ConfigError(f"the data module knows no floor of {metric}")
    return tuple(Reference(name, float(value)) for name, value in values.items())


RUNNER = Runner(
    LightningRunConfig,
    Interrupted,
    run_key,
    describe,
    _changes_nothing,
    fit,
    probe,
    check,
    data_content=data_content,
    floors=_floors,
    measure_of=measure_of_module,
    source_files=source_files,
    rate_fields=lambda config: rates_in(config.model.init_args, "model.init_args"),
)
