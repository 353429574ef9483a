"""The pass that fills the cache of features of a frozen network or of its lowest layers: its size, and the runs that
share it."""

from __future__ import annotations

from datamodules import LabelledData
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.models.cost import shapes_or_values
from lit_transformers.runner import CachedPass
from lit_transformers.runs.config import RunConfig, cached_flops
from lit_transformers.runs.features import decisive_rows, splits_of
from lit_transformers.runs.keys import with_content
from lit_transformers.training.training_flops import RowLength

__all__ = ["feature_pass"]


def feature_pass(config: RunConfig) -> CachedPass | None:
    """Returns the pass that fills the cache of a run; None if the run has no cache. Each row counts as the longest, as
    in training. Raises ConfigError or DataError."""
    fields = config.training
    if not (fields.cache_features or fields.cached_layers) or not fields.steps:
        return None
    data = config.build_data()
    if not isinstance(data, LabelledData):
        return None
    examples = sum(len(data.ordinals(split)) for split in splits_of(data))
    layers: Plain = [config.task.get("layers"), [*config.task.get("combined_layers")]]
    if fields.cached_layers:
        layers = fields.cached_layers
    decisive: Plain = [with_content(config).get("start"), layers, decisive_rows(config, data)]
    length, description = data.config.length, data.description
    row = RowLength(length, 0, 0)
    _, flops = shapes_or_values(
        lambda: config.measured_task.build(config.model, description, fields),
        lambda task: cached_flops(task, fields, row),
    )
    return CachedPass(canonical_hash(decisive, 32), length * examples, flops / length)
