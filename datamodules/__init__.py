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
from datamodules.pairs import PairData, PairDataConfig, PairEvaluationConfig
from datamodules.pairs_catalogues import CataloguesConfig, MessagesConfig
from datamodules.pairs_docstrings import DocstringsConfig
from datamodules.pairs_hub import HubPairsConfig
from datamodules.pairs_json import JsonPairsConfig, QMSumConfig, SciTLDRConfig
from datamodules.pairs_papers import SciSummNetConfig
from datamodules.pairs_parallel import Multi30kConfig, ParallelConfig
from datamodules.pairs_source import PairsConfig
from datamodules.pairs_store import tokenizers_of
from datamodules.pairs_strings import StringPairsConfig
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
    "PAIRS",
    "SOURCES",
    "TOKENIZERS",
    "AdditionConfig",
    "BPEConfig",
    "BooksConfig",
    "BytesConfig",
    "CataloguesConfig",
    "CharactersConfig",
    "CopyConfig",
    "Corpus",
    "Data",
    "DataConfig",
    "DataError",
    "DocstringsConfig",
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
    "HubPairsConfig",
    "JsonPairsConfig",
    "LabelledData",
    "LabelledDataConfig",
    "LabelledEvaluationConfig",
    "LanguageData",
    "LanguageDataConfig",
    "Limit",
    "ListOpsConfig",
    "MaskedSumConfig",
    "MessagesConfig",
    "Multi30kConfig",
    "NeedleConfig",
    "PairData",
    "PairDataConfig",
    "PairEvaluationConfig",
    "PairsConfig",
    "ParallelConfig",
    "PeriodicConfig",
    "QMSumConfig",
    "RecallConfig",
    "ReverseConfig",
    "ReviewsConfig",
    "SciSummNetConfig",
    "SciTLDRConfig",
    "Shard",
    "SourceConfig",
    "Split",
    "StdlibConfig",
    "StringEvaluationConfig",
    "StringPairsConfig",
    "SyntheticConfig",
    "Tokenizer",
    "TokenizerConfig",
    "WikitextConfig",
    "WordsConfig",
    "cache_folder",
    "tokenizer_from_dict",
    "tokenizers_of",
]

DATA = table(
    DataConfig, LanguageDataConfig, GeneratedDataConfig, LabelledDataConfig, PairDataConfig, implied="language"
)
EXAMPLES = table(ExamplesConfig, ListOpsConfig, MaskedSumConfig, NeedleConfig, ReviewsConfig)
PAIRS = table(
    PairsConfig,
    StringPairsConfig,
    ParallelConfig,
    Multi30kConfig,
    CataloguesConfig,
    MessagesConfig,
    JsonPairsConfig,
    QMSumConfig,
    SciTLDRConfig,
    SciSummNetConfig,
    HubPairsConfig,
    DocstringsConfig,
)
SOURCES = table(SourceConfig, StdlibConfig, FilesConfig, WikitextConfig, BooksConfig, HubConfig, PeriodicConfig)
TOKENIZERS = table(TokenizerConfig, BytesConfig, CharactersConfig, WordsConfig, BPEConfig)
