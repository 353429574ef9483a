"""Compression of networks: pruning, quantisation and shared values, as parts of a run that compose."""

from lit_transformers.compression.compression import Compression, CompressionConfig
from lit_transformers.compression.gate_heads import GateHeadsConfig
from lit_transformers.compression.hold_zeros import HoldZerosConfig
from lit_transformers.compression.prune_heads import PruneHeadsConfig
from lit_transformers.compression.prune_weights import PruneWeightsConfig
from lit_transformers.compression.quantise_activations import QuantiseActivationsConfig
from lit_transformers.compression.quantise_weights import QuantiseWeightsConfig
from lit_transformers.compression.share_values import ShareValuesConfig
from lit_transformers.config import table

COMPRESSIONS = table(
    CompressionConfig,  # type: ignore[type-abstract]
    PruneWeightsConfig,
    PruneHeadsConfig,
    GateHeadsConfig,
    HoldZerosConfig,
    QuantiseWeightsConfig,
    QuantiseActivationsConfig,
    ShareValuesConfig,
)

__all__ = [
    "COMPRESSIONS",
    "Compression",
    "CompressionConfig",
    "GateHeadsConfig",
    "HoldZerosConfig",
    "PruneHeadsConfig",
    "PruneWeightsConfig",
    "QuantiseActivationsConfig",
    "QuantiseWeightsConfig",
    "ShareValuesConfig",
]
