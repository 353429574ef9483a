"""Adapters: small trained parts after sublayers, parallel to them, or in their linear maps."""

from lit_transformers.adapters.adapter import AdapterConfig, Sublayer, adapter_names
from lit_transformers.adapters.bottleneck import BottleneckConfig
from lit_transformers.adapters.dora import DoRAConfig
from lit_transformers.adapters.ia3 import IA3Config
from lit_transformers.adapters.low_rank import LowRankConfig
from lit_transformers.adapters.parallel import ParallelAdapterConfig
from lit_transformers.adapters.vera import VeRAConfig
from lit_transformers.config import table
from lit_transformers.maps import Adapter, MapAdapter

ADAPTERS = table(
    AdapterConfig,  # type: ignore[type-abstract]
    BottleneckConfig,
    ParallelAdapterConfig,
    LowRankConfig,
    DoRAConfig,
    VeRAConfig,
    IA3Config,
)

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AdapterConfig",
    "BottleneckConfig",
    "DoRAConfig",
    "IA3Config",
    "LowRankConfig",
    "MapAdapter",
    "ParallelAdapterConfig",
    "Sublayer",
    "VeRAConfig",
    "adapter_names",
]
