"""Mixers, one per file. A new mixer needs its file and a line here."""

from lit_transformers.config import table
from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers.adaptive_span.adaptive_span import AdaptiveSpanConfig
from lit_transformers.mixers.attention import AttentionConfig
from lit_transformers.mixers.big_bird import BigBirdConfig
from lit_transformers.mixers.compressive.compressive import CompressiveConfig
from lit_transformers.mixers.convolution import ConvolutionConfig
from lit_transformers.mixers.diet import DietConfig
from lit_transformers.mixers.entmax.entmax import EntmaxConfig
from lit_transformers.mixers.linear import LinearConfig
from lit_transformers.mixers.linformer.linformer import LinformerConfig
from lit_transformers.mixers.local import LocalConfig
from lit_transformers.mixers.lsra import LSRAConfig
from lit_transformers.mixers.lstm import BiLSTMConfig, LSTMConfig
from lit_transformers.mixers.reformer.lsh import LSHConfig
from lit_transformers.mixers.sparse import SparseConfig
from lit_transformers.mixers.star import StarConfig
from lit_transformers.mixers.synthesizer.synthesizer import SynthesizerConfig
from lit_transformers.mixers.top_k import TopKConfig
from lit_transformers.mixers.window import WindowConfig

MIXERS = table(
    MixerConfig,  # type: ignore[type-abstract]
    AttentionConfig,
    LocalConfig,
    WindowConfig,
    SparseConfig,
    DietConfig,
    BigBirdConfig,
    LSHConfig,
    AdaptiveSpanConfig,
    TopKConfig,
    EntmaxConfig,
    LinearConfig,
    LinformerConfig,
    SynthesizerConfig,
    ConvolutionConfig,
    LSRAConfig,
    LSTMConfig,
    BiLSTMConfig,
    StarConfig,
    CompressiveConfig,
)

__all__ = [
    "MIXERS",
    "AdaptiveSpanConfig",
    "AttentionConfig",
    "BiLSTMConfig",
    "BigBirdConfig",
    "CompressiveConfig",
    "ConvolutionConfig",
    "DietConfig",
    "EntmaxConfig",
    "LSHConfig",
    "LSRAConfig",
    "LSTMConfig",
    "LinearConfig",
    "LinformerConfig",
    "LocalConfig",
    "MixerConfig",
    "SparseConfig",
    "StarConfig",
    "SynthesizerConfig",
    "TopKConfig",
    "WindowConfig",
]
