"""How depth is spent: which block runs when, and whose state and positions it gets."""

from lit_transformers.config import table
from lit_transformers.stacks.reversible import ReversibleConfig
from lit_transformers.stacks.sequential import SequentialConfig
from lit_transformers.stacks.shared import SharedConfig
from lit_transformers.stacks.stack import Entry, Stack, StackConfig, Stacked
from lit_transformers.stacks.universal import HaltingConfig, UniversalConfig

STACKS = table(StackConfig, SequentialConfig, SharedConfig, UniversalConfig, ReversibleConfig)

__all__ = [
    "STACKS",
    "Entry",
    "HaltingConfig",
    "ReversibleConfig",
    "SequentialConfig",
    "SharedConfig",
    "Stack",
    "StackConfig",
    "Stacked",
    "UniversalConfig",
]
