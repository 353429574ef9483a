"""Runs: one model on one kind of data, from a config to a record. The one place where a model meets its data."""

from lit_transformers.runs.config import Description, RunConfig, RunWeightsConfig, describe
from lit_transformers.runs.evaluate import evaluate, load
from lit_transformers.runs.fit import fit
from lit_transformers.runs.keys import run_key
from lit_transformers.runs.sources import (
    ConvertedWeightsConfig,
    FileWeightsConfig,
    ImportedWeightsConfig,
    StartConfig,
)
from lit_transformers.training.stopping import Interrupted

__all__ = [
    "ConvertedWeightsConfig",
    "Description",
    "FileWeightsConfig",
    "ImportedWeightsConfig",
    "Interrupted",
    "RunConfig",
    "RunWeightsConfig",
    "StartConfig",
    "describe",
    "evaluate",
    "fit",
    "load",
    "run_key",
]
