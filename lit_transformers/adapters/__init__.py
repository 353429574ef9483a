"""Adapters: small parts that blocks put after their sublayers or beside the linear maps of these."""

from lit_transformers.adapters.adapter import AdapterConfig, Sublayer, adapter_names
from lit_transformers.adapters.bottleneck import BottleneckConfig
from lit_transformers.adapters.low_rank import LowRankConfig
from lit_transformers.config import table
from lit_transformers.maps import Adapter

ADAPTERS = table(AdapterConfig, BottleneckConfig, LowRankConfig)  # type: ignore[type-abstract]

__all__ = ["ADAPTERS", "Adapter", "AdapterConfig", "BottleneckConfig", "LowRankConfig", "Sublayer", "adapter_names"]
