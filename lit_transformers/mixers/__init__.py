"""One idea, one file. Adding a mixer costs its file and a line here."""

from lit_transformers.config import table
from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers.attention import AttentionConfig

MIXERS = table(MixerConfig, AttentionConfig)

__all__ = ["MIXERS", "AttentionConfig", "MixerConfig"]
