"""The functions for scripts and notebooks: ``from lit_transformers import fit, load_checkpoint``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lit_transformers.checked_files import Precision
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference.write import write
from lit_transformers.plugins import load_plugins
from lit_transformers.run_file import read_run, run_class
from lit_transformers.runner import load_runner, runner_of
from lit_transformers.runs import RunConfig, load
from lit_transformers.runs import evaluate as evaluate_checkpoint
from lit_transformers.runs.config import describe
from lit_transformers.runs.layer_probes import probe_layers as probe
from lit_transformers.runs.required_memory import require_memory
from lit_transformers.tasks import Task
from lit_transformers.trust import allow_modules, remember

__all__ = ["allow_modules", "build_model", "evaluate", "fit", "generate", "load_checkpoint", "probe_layers"]

Run = Config | Mapping[str, Plain] | str | Path
"""A run's config, of a model of this library or of any LightningModule, its plain data, or the path of its YAML file.
Its parts may be those of plug-ins that the project file of the working folder names; a file may name classes of modules
that are allowed (``allow_modules``)."""


def _config(run: Run) -> Config:
    load_plugins()
    if isinstance(run, str | Path):
        return read_run(Path(run))
    remember(run)
    return run if isinstance(run, Config) else run_class(run).from_dict(run)


def build_model(run: Run) -> Task:
    """Returns the LightningModule of a run with fresh weights, built for the run's data; its network is ``.network``.

    Raises ConfigError for a wrong config or one of a LightningModule from elsewhere, which its class builds, and
    DataError where the data that it describes are not there.
    """
    config = _config(run)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"is built by its class, {config.get('model.class_path')}", "model")
    data = config.build_data()
    require_memory(config, describe(config, data).parameters)
    return config.build_task(data)


def load_checkpoint(checkpoint: str | Path) -> Task:
    """Returns the trained LightningModule of a run's checkpoint.ckpt, ready to use (``eval``). Nothing in the file is
    executed. Raises ConfigError for a file that is damaged or is no checkpoint of this suite."""
    return load(Path(checkpoint))[0]


def evaluate(checkpoint: str | Path, changes: Mapping[str, Plain] | None = None) -> dict[str, float]:
    """Measures a trained model again and returns its metrics by name.

    changes: values by paths of its run's config, such as {"data.evaluation.documents": 8}.
    """
    return evaluate_checkpoint(Path(checkpoint), dict(changes or {}))


def generate(
    checkpoint: str | Path,
    prompt: str = "",
    length: int = 256,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    beams: int = 1,
    memory: int | None = None,
    seed: int = 0,
    draft: str | Path | None = None,
    draft_symbols: int = 4,
    precision: Precision = "float32",
) -> str:
    """Returns the prompt and ``length`` symbols after it. The options are those of the command of this name.

    Raises ConfigError where the checkpoint is not that of a causal_lm.
    """
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    drafting = None if draft is None else Path(draft)
    return "".join(write(Path(checkpoint), prompt, length, sampling, beams, memory, drafting, draft_symbols, precision))


def fit(run: Run, directory: str | Path) -> dict[str, Plain]:
    """Trains a run, or resumes it from its checkpoint, and returns its record: "outcome", "metrics" and the rest.

    directory: an empty folder, or the run's own; it holds checkpoint.ckpt afterwards. Raises ConfigError or DataError
    before anything starts.
    """
    config = _config(run)
    return load_runner(runner_of(config)).fit(config, Path(directory))


def probe_layers(run: Run, penalty: float = 0.05, runs: str | Path = "runs") -> pd.DataFrame:
    """Probes every layer and pooling of the network that a classification run starts from, by logistic regression
    (arXiv:1610.01644, section 3). Returns a table with the columns layer (0 is the embeddings), pooling, accuracy and
    nats. Features are computed once and cached.

    penalty: on squared weights. runs: the folder of the runs that the run starts from. Raises ConfigError for a run
    that does not predict a class for each row, and DataError if its data are missing.
    """
    config = _config(run)
    if not isinstance(config, RunConfig):
        raise ConfigError("a LightningModule has no layers to probe", "model")
    return probe(config, penalty, runs)
