"""Corpora as streams of documents, tokenizers, and batches for a Lightning trainer."""

from __future__ import annotations

from datamodules.data import Data, DataConfig
from datamodules.documents import Corpus, Document, Documents, DocumentStream, Limit, Shard, Split, cache_folder
from datamodules.errors import DataError
from datamodules.examples import Example, Examples, ExamplesConfig, SyntheticConfig
from datamodules.generated import GeneratedData, GeneratedDataConfig, StringEvaluationConfig
from datamodules.generators import (
    GENERATORS,
    AdditionConfig,
    CopyConfig,
    DuplicationConfig,
    GeneratorConfig,
    RecallConfig,
    ReverseConfig,
)
from datamodules.hub import HubConfig
from datamodules.labelled import LabelledData, LabelledDataConfig, LabelledEvaluationConfig
from datamodules.language import EvaluationConfig, LanguageData, LanguageDataConfig
from datamodules.listops import ListOpsConfig
from datamodules.masked_sum import MaskedSumConfig
from datamodules.needle import NeedleConfig
from datamodules.periodic import PeriodicConfig
from datamodules.reviews import ReviewsConfig
from datamodules.sources import BooksConfig, FilesConfig, SourceConfig, StdlibConfig, WikitextConfig
from datamodules.tokenizers import (
    BPEConfig,
    BytesConfig,
    CharactersConfig,
    Tokenizer,
    TokenizerConfig,
    WordsConfig,
    tokenizer_from_dict,
)
from lit_transformers.config import table

__all__ = [
    "DATA",
    "EXAMPLES",
    "GENERATORS",
    "SOURCES",
    "TOKENIZERS",
    "AdditionConfig",
    "BPEConfig",
    "BooksConfig",
    "BytesConfig",
    "CharactersConfig",
    "CopyConfig",
    "Corpus",
    "Data",
    "DataConfig",
    "DataError",
    "Document",
    "DocumentStream",
    "Documents",
    "DuplicationConfig",
    "EvaluationConfig",
    "Example",
    "Examples",
    "ExamplesConfig",
    "FilesConfig",
    "GeneratedData",
    "GeneratedDataConfig",
    "GeneratorConfig",
    "HubConfig",
    "LabelledData",
    "LabelledDataConfig",
    "LabelledEvaluationConfig",
    "LanguageData",
    "LanguageDataConfig",
    "Limit",
    "ListOpsConfig",
    "MaskedSumConfig",
    "NeedleConfig",
    "PeriodicConfig",
    "RecallConfig",
    "ReverseConfig",
    "ReviewsConfig",
    "Shard",
    "SourceConfig",
    "Split",
    "StdlibConfig",
    "StringEvaluationConfig",
    "SyntheticConfig",
    "Tokenizer",
    "TokenizerConfig",
    "WikitextConfig",
    "WordsConfig",
    "cache_folder",
    "tokenizer_from_dict",
]

DATA = table(DataConfig, LanguageDataConfig, GeneratedDataConfig, LabelledDataConfig, implied="language")
EXAMPLES = table(ExamplesConfig, ListOpsConfig, MaskedSumConfig, NeedleConfig, ReviewsConfig)
SOURCES = table(SourceConfig, StdlibConfig, FilesConfig, WikitextConfig, BooksConfig, HubConfig, PeriodicConfig)
TOKENIZERS = table(TokenizerConfig, BytesConfig, CharactersConfig, WordsConfig, BPEConfig)
