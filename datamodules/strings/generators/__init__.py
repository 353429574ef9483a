"""Generators of strings, one idea a file. A new one needs its file and a line here."""

from __future__ import annotations

from datamodules.strings.generators.addition import AdditionConfig
from datamodules.strings.generators.brackets import BracketsConfig
from datamodules.strings.generators.generator import GeneratorConfig, String, random_of
from datamodules.strings.generators.in_context_recall import InContextRecallConfig
from datamodules.strings.generators.induction import InductionConfig
from datamodules.strings.generators.memorisation import MemorisationConfig
from datamodules.strings.generators.recall import RecallConfig
from datamodules.strings.generators.selective_copy import SelectiveCopyConfig
from datamodules.strings.generators.words import CopyConfig, DuplicationConfig, ReverseConfig
from lit_transformers.config import table

__all__ = [
    "GENERATORS",
    "AdditionConfig",
    "BracketsConfig",
    "CopyConfig",
    "DuplicationConfig",
    "GeneratorConfig",
    "InContextRecallConfig",
    "InductionConfig",
    "MemorisationConfig",
    "RecallConfig",
    "ReverseConfig",
    "SelectiveCopyConfig",
    "String",
    "random_of",
]

GENERATORS = table(
    GeneratorConfig,
    DuplicationConfig,
    CopyConfig,
    ReverseConfig,
    AdditionConfig,
    RecallConfig,
    InContextRecallConfig,
    SelectiveCopyConfig,
    MemorisationConfig,
    InductionConfig,
    BracketsConfig,
)
