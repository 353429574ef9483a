"""Stacks: which block runs at each step of the depth, with which state and positions."""

from lit_transformers.config import table
from lit_transformers.stacks.reversible import ReversibleConfig
from lit_transformers.stacks.sequential import SequentialConfig
from lit_transformers.stacks.shared import SharedConfig
from lit_transformers.stacks.stack import Stack, StackConfig, StackInput, StackOutput
from lit_transformers.stacks.universal import HaltingConfig, UniversalConfig

STACKS = table(StackConfig, SequentialConfig, SharedConfig, UniversalConfig, ReversibleConfig)

__all__ = [
    "STACKS",
    "HaltingConfig",
    "ReversibleConfig",
    "SequentialConfig",
    "SharedConfig",
    "Stack",
    "StackConfig",
    "StackInput",
    "StackOutput",
    "UniversalConfig",
]
