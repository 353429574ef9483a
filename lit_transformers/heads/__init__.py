"""Heads: the predictions of a task from a network, one kind per file. A new kind needs its file and a line here."""

from lit_transformers.config import table
from lit_transformers.heads.answer_span import AnswerSpanConfig
from lit_transformers.heads.answer_symbols import AnswerSymbolsConfig
from lit_transformers.heads.choices import ChoiceScoresConfig
from lit_transformers.heads.contrast import ContrastConfig, MaskedSymbolsConfig
from lit_transformers.heads.head import Head, HeadConfig, HeadDict, HeadLoss, Representation
from lit_transformers.heads.hidden_symbols import HiddenSymbolsConfig
from lit_transformers.heads.next_symbol import FutureSymbolConfig, LayerSymbolsConfig, NextSymbolConfig
from lit_transformers.heads.one_sided_symbols import OneSidedSymbolsConfig
from lit_transformers.heads.passages import PassagesConfig
from lit_transformers.heads.phrase_detection import ReplacedPhrasesConfig
from lit_transformers.heads.pooled import ClassLabelConfig, ClassSetLabelConfig, NumberLabelConfig
from lit_transformers.heads.relation import RelationConfig
from lit_transformers.heads.replaced_symbols import DrawnSymbolsConfig, ReplacedSymbolsConfig
from lit_transformers.heads.span_boundary import SpanBoundaryConfig
from lit_transformers.heads.tag_label import TagLabelConfig

HEADS = table(
    HeadConfig,
    NextSymbolConfig,
    LayerSymbolsConfig,
    FutureSymbolConfig,
    AnswerSymbolsConfig,
    ClassLabelConfig,
    ClassSetLabelConfig,
    NumberLabelConfig,
    TagLabelConfig,
    ChoiceScoresConfig,
    HiddenSymbolsConfig,
    OneSidedSymbolsConfig,
    RelationConfig,
    SpanBoundaryConfig,
    ReplacedPhrasesConfig,
    ReplacedSymbolsConfig,
    DrawnSymbolsConfig,
    ContrastConfig,
    MaskedSymbolsConfig,
    AnswerSpanConfig,
    PassagesConfig,
)

__all__ = [
    "HEADS",
    "AnswerSpanConfig",
    "AnswerSymbolsConfig",
    "ChoiceScoresConfig",
    "ClassLabelConfig",
    "ClassSetLabelConfig",
    "ContrastConfig",
    "DrawnSymbolsConfig",
    "FutureSymbolConfig",
    "Head",
    "HeadConfig",
    "HeadDict",
    "HeadLoss",
    "HiddenSymbolsConfig",
    "LayerSymbolsConfig",
    "MaskedSymbolsConfig",
    "NextSymbolConfig",
    "NumberLabelConfig",
    "OneSidedSymbolsConfig",
    "PassagesConfig",
    "RelationConfig",
    "ReplacedPhrasesConfig",
    "ReplacedSymbolsConfig",
    "Representation",
    "SpanBoundaryConfig",
    "TagLabelConfig",
]
