"""Refuses runs that would undo the quantisation of the network that they start from, in training or in a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lit_transformers.compression import QuantiseActivationsConfig, QuantiseWeightsConfig, ShareValuesConfig
from lit_transformers.config import ConfigError
from lit_transformers.runs.config import RunConfig, RunWeightsConfig
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.sources import FileWeightsConfig, WeightSourceConfig
from lit_transformers.runs.starting_weights import HEADER
from lit_transformers.training.checkpoints import read

__all__ = ["require_kept_levels"]

FEW_VALUES = (QuantiseWeightsConfig.kind, ShareValuesConfig.kind)
"""The compressions that leave a weight few values."""


def require_kept_levels(config: RunConfig) -> None:
    """Raises ConfigError, which names the source, where a run would train quantised weights as others, or read inputs
    without the quantisation that its source has."""
    own = {compression.kind for compression in config.compression}
    trains_levels = any(isinstance(one, QuantiseWeightsConfig) and one.when == "during" for one in config.compression)
    is_frozen = any(group.frozen and "network" in group.parameters for group in config.training.groups)
    for part, source in config.start.sources().items():
        kinds = [*compressions_of_source(source, f"start.{part}")]
        few = next((kind for kind in FEW_VALUES if kind in kinds), None)
        if few and part != "teacher" and config.training.steps and not trains_levels and not is_frozen:
            reason = f"has weights of {few}, and training would change them to any others"
            way_out = "add compression: [{kind: quantise_weights, when: during}], or start from the run before"
            raise ConfigError(f"{reason}; {way_out}", f"start.{part}")
        activations = QuantiseActivationsConfig.kind
        if activations in kinds and (part == "teacher" or activations not in own):
            reason = "quantises inputs of linear maps, and this run would read them as they are"
            way_out = "start from the run before" if part == "teacher" else f"add its {activations} to compression"
            raise ConfigError(f"{reason}; {way_out}", f"start.{part}")


def compressions_of_source(source: WeightSourceConfig, field: str) -> Iterator[str]:
    """Yields the kinds of the compressions that the weights of a source have gone through since they were trained."""
    if isinstance(source, RunWeightsConfig):
        yield from kinds_of_run(source.run.to_dict())
    elif isinstance(source, FileWeightsConfig) and (file := file_of_source(source, field)).suffix != ".safetensors":
        yield from kinds_of_run(read(file, mmap=True)[HEADER]["config"])


def kinds_of_run(run: Mapping[str, Any]) -> Iterator[str]:
    """Yields the kinds of the compressions of a run, given as plain data, and of those from which it and they start
    without training."""
    yield from (compression["kind"] for compression in run.get("compression", ()))
    network = run.get("start", {}).get("network") or {}
    if not run["training"]["steps"] and network.get("kind") == "run":
        yield from kinds_of_run(network["run"])
