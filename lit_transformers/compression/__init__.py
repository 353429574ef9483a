"""Compression of weights: pruning, quantisation and shared values, as parts of a run that compose."""

from lit_transformers.compression.compression import Compression, CompressionConfig
from lit_transformers.compression.prune_weights import PruneWeightsConfig
from lit_transformers.compression.quantise_weights import QuantiseWeightsConfig
from lit_transformers.compression.share_values import ShareValuesConfig
from lit_transformers.config import table

COMPRESSIONS = table(
    CompressionConfig,  # type: ignore[type-abstract]
    PruneWeightsConfig,
    QuantiseWeightsConfig,
    ShareValuesConfig,
)

__all__ = [
    "COMPRESSIONS",
    "Compression",
    "CompressionConfig",
    "PruneWeightsConfig",
    "QuantiseWeightsConfig",
    "ShareValuesConfig",
]
