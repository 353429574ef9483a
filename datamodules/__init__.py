"""Corpora as streams of documents, tokenizers, and batches for a Lightning trainer."""

from __future__ import annotations

from datamodules.documents import Corpus, Document, Documents, DocumentStream, Limit, Shard, Split, cache_folder
from datamodules.errors import DataError
from datamodules.hub import HubConfig
from datamodules.language import EvaluationConfig, LanguageData, LanguageDataConfig
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
    "SOURCES",
    "TOKENIZERS",
    "BPEConfig",
    "BooksConfig",
    "BytesConfig",
    "CharactersConfig",
    "Corpus",
    "DataError",
    "Document",
    "DocumentStream",
    "Documents",
    "EvaluationConfig",
    "FilesConfig",
    "HubConfig",
    "LanguageData",
    "LanguageDataConfig",
    "Limit",
    "Shard",
    "SourceConfig",
    "Split",
    "StdlibConfig",
    "Tokenizer",
    "TokenizerConfig",
    "WikitextConfig",
    "WordsConfig",
    "cache_folder",
    "tokenizer_from_dict",
]

SOURCES = table(SourceConfig, StdlibConfig, FilesConfig, WikitextConfig, BooksConfig, HubConfig)
TOKENIZERS = table(TokenizerConfig, BytesConfig, CharactersConfig, WordsConfig, BPEConfig)
