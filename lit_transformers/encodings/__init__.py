"""Position encodings that act on attention scores. A new one needs its own file and a line here."""

from lit_transformers.config import table
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.encodings.huang import HuangConfig
from lit_transformers.encodings.learned_relative import LearnedRelativeConfig
from lit_transformers.encodings.rotary import RotaryConfig
from lit_transformers.encodings.shaw import ShawConfig
from lit_transformers.encodings.xl import XLConfig

ENCODINGS = table(EncodingConfig, RotaryConfig, XLConfig, ShawConfig, HuangConfig, LearnedRelativeConfig)

__all__ = [
    "ENCODINGS",
    "EncodingConfig",
    "HuangConfig",
    "LearnedRelativeConfig",
    "RotaryConfig",
    "ShawConfig",
    "XLConfig",
]
