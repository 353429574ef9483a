"""Corpora as streams of documents, tokenizers, and batches for a Lightning trainer."""

from __future__ import annotations

from datamodules.core.data import Data, DataConfig
from datamodules.core.documents import Corpus, Document, Documents, DocumentStream, Limit, Shard, Split, cache_folder
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig, SyntheticConfig
from datamodules.core.tokenizers import (
    BPEConfig,
    BytesConfig,
    CharactersConfig,
    PretrainedTokenizerConfig,
    Tokenizer,
    TokenizerConfig,
    WordPieceConfig,
    WordsConfig,
    tokenizer_from_dict,
)
from datamodules.core.trained import TrainedSymbols, tokenizer_conflicts, with_errors_of
from datamodules.denoising.corruptions import (
    ComposedConfig,
    CorruptionConfig,
    DeshufflingConfig,
    DocumentRotationConfig,
    SentencePermutationConfig,
    TextInfillingConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
)
from datamodules.denoising.denoising import DenoisingData, DenoisingDataConfig, DenoisingEvaluationConfig
from datamodules.denoising.parts import (
    CausalTargetConfig,
    MASSConfig,
    PhasesConfig,
    PrefixTargetConfig,
    SpanCorruptionConfig,
)
from datamodules.labelled.choices import ChoiceRecordsConfig, SquadChoicesConfig
from datamodules.labelled.conll import ConllConfig
from datamodules.labelled.facts import FactsConfig
from datamodules.labelled.labelled import LabelledData, LabelledDataConfig, LabelledEvaluationConfig
from datamodules.labelled.labelled_records import LabelledRecordsConfig
from datamodules.labelled.listops import ListOpsConfig
from datamodules.labelled.masked_sum import MaskedSumConfig
from datamodules.labelled.mixed import MixedData, MixedDataConfig
from datamodules.labelled.needle import NeedleConfig
from datamodules.labelled.periodic import PeriodicConfig
from datamodules.labelled.questions import QuestionsConfig
from datamodules.labelled.reviews import ReviewsConfig
from datamodules.labelled.sampling import (
    AnnealedConfig,
    ProportionalConfig,
    SourceSamplingConfig,
    TemperatureConfig,
    UniformConfig,
)
from datamodules.labelled.sentences import SentencesConfig
from datamodules.pairs.catalogues import CataloguesConfig, MessagesConfig
from datamodules.pairs.docstrings import DocstringsConfig
from datamodules.pairs.hub import HubPairsConfig
from datamodules.pairs.json import JsonPairsConfig, QMSumConfig, SciTLDRConfig
from datamodules.pairs.paired_records import RecordPairsConfig
from datamodules.pairs.pairs import PairData, PairDataConfig, PairEvaluationConfig
from datamodules.pairs.papers import SciSummNetConfig
from datamodules.pairs.parallel import Multi30kConfig, ParallelConfig
from datamodules.pairs.prompts import PromptData, PromptDataConfig, PromptEvaluationConfig
from datamodules.pairs.retrieval import RetrievalData, RetrievalDataConfig, RetrievalEvaluationConfig
from datamodules.pairs.source import PairsConfig
from datamodules.pairs.squad import SquadPairsConfig
from datamodules.pairs.stored_pairs import tokenizers_of
from datamodules.pairs.strings import StringPairsConfig
from datamodules.pairs.translations import TranslationsConfig
from datamodules.rows.attention_masks import AttentionMasksConfig
from datamodules.rows.noises import MaskSpansConfig, MaskTokensConfig, NoiseConfig
from datamodules.rows.phrase_noises import MaskNgramsConfig, MaskPhrasesConfig
from datamodules.rows.phrases import PhrasesConfig
from datamodules.rows.replaced_phrases import ReplacePhrasesConfig
from datamodules.rows.rows import RowData, RowDataConfig, RowEvaluationConfig
from datamodules.rows.shuffled import MaskAndShuffleConfig
from datamodules.strings.generated import GeneratedData, GeneratedDataConfig, StringEvaluationConfig
from datamodules.strings.generators import (
    GENERATORS,
    AdditionConfig,
    BracketsConfig,
    CopyConfig,
    DuplicationConfig,
    GeneratorConfig,
    InContextRecallConfig,
    InductionConfig,
    MemorisationConfig,
    RecallConfig,
    ReverseConfig,
    SelectiveCopyConfig,
)
from datamodules.text.hub import HubConfig
from datamodules.text.labelled_training import LabelledTrainingConfig
from datamodules.text.lags import LagsConfig
from datamodules.text.language import EvaluationConfig, LanguageData, LanguageDataConfig
from datamodules.text.sources import BooksConfig, FilesConfig, SourceConfig, StdlibConfig, WikitextConfig
from datamodules.text.topics import TopicsConfig
from lit_transformers.config import table

__all__ = [
    "CORRUPTIONS",
    "DATA",
    "EXAMPLES",
    "GENERATORS",
    "NOISES",
    "PAIRS",
    "SAMPLINGS",
    "SOURCES",
    "TOKENIZERS",
    "AdditionConfig",
    "AnnealedConfig",
    "AttentionMasksConfig",
    "BPEConfig",
    "BooksConfig",
    "BracketsConfig",
    "BytesConfig",
    "CataloguesConfig",
    "CausalTargetConfig",
    "CharactersConfig",
    "ChoiceRecordsConfig",
    "ComposedConfig",
    "ConllConfig",
    "CopyConfig",
    "Corpus",
    "CorruptionConfig",
    "Data",
    "DataConfig",
    "DataError",
    "DenoisingData",
    "DenoisingDataConfig",
    "DenoisingEvaluationConfig",
    "DeshufflingConfig",
    "DocstringsConfig",
    "Document",
    "DocumentRotationConfig",
    "DocumentStream",
    "Documents",
    "DuplicationConfig",
    "EvaluationConfig",
    "Example",
    "Examples",
    "ExamplesConfig",
    "FactsConfig",
    "FilesConfig",
    "GeneratedData",
    "GeneratedDataConfig",
    "GeneratorConfig",
    "HubConfig",
    "HubPairsConfig",
    "InContextRecallConfig",
    "InductionConfig",
    "JsonPairsConfig",
    "LabelledData",
    "LabelledDataConfig",
    "LabelledEvaluationConfig",
    "LabelledRecordsConfig",
    "LabelledTrainingConfig",
    "LagsConfig",
    "LanguageData",
    "LanguageDataConfig",
    "Limit",
    "ListOpsConfig",
    "MASSConfig",
    "MaskAndShuffleConfig",
    "MaskNgramsConfig",
    "MaskPhrasesConfig",
    "MaskSpansConfig",
    "MaskTokensConfig",
    "MaskedSumConfig",
    "MemorisationConfig",
    "MessagesConfig",
    "MixedData",
    "MixedDataConfig",
    "Multi30kConfig",
    "NeedleConfig",
    "NoiseConfig",
    "PairData",
    "PairDataConfig",
    "PairEvaluationConfig",
    "PairsConfig",
    "ParallelConfig",
    "PeriodicConfig",
    "PhasesConfig",
    "PhrasesConfig",
    "PrefixTargetConfig",
    "PretrainedTokenizerConfig",
    "PromptData",
    "PromptDataConfig",
    "PromptEvaluationConfig",
    "ProportionalConfig",
    "QMSumConfig",
    "QuestionsConfig",
    "RecallConfig",
    "RecordPairsConfig",
    "ReplacePhrasesConfig",
    "RetrievalData",
    "RetrievalDataConfig",
    "RetrievalEvaluationConfig",
    "ReverseConfig",
    "ReviewsConfig",
    "RowData",
    "RowDataConfig",
    "RowEvaluationConfig",
    "SciSummNetConfig",
    "SciTLDRConfig",
    "SelectiveCopyConfig",
    "SentencePermutationConfig",
    "SentencesConfig",
    "Shard",
    "SourceConfig",
    "SourceSamplingConfig",
    "SpanCorruptionConfig",
    "Split",
    "SquadChoicesConfig",
    "SquadPairsConfig",
    "StdlibConfig",
    "StringEvaluationConfig",
    "StringPairsConfig",
    "SyntheticConfig",
    "TemperatureConfig",
    "TextInfillingConfig",
    "TokenDeletionConfig",
    "TokenMaskingConfig",
    "Tokenizer",
    "TokenizerConfig",
    "TopicsConfig",
    "TrainedSymbols",
    "TranslationsConfig",
    "UniformConfig",
    "WikitextConfig",
    "WordPieceConfig",
    "WordsConfig",
    "cache_folder",
    "tokenizer_conflicts",
    "tokenizer_from_dict",
    "tokenizers_of",
    "with_errors_of",
]

CORRUPTIONS = table(
    CorruptionConfig,
    TokenMaskingConfig,
    TokenDeletionConfig,
    TextInfillingConfig,
    SentencePermutationConfig,
    DocumentRotationConfig,
    DeshufflingConfig,
    ComposedConfig,
    MASSConfig,
    SpanCorruptionConfig,
    PrefixTargetConfig,
    CausalTargetConfig,
    PhasesConfig,
)
DATA = table(
    DataConfig,
    LanguageDataConfig,
    GeneratedDataConfig,
    LabelledDataConfig,
    MixedDataConfig,
    PairDataConfig,
    PromptDataConfig,
    RetrievalDataConfig,
    RowDataConfig,
    DenoisingDataConfig,
    implied="language",
)
EXAMPLES = table(
    ExamplesConfig,
    ListOpsConfig,
    MaskedSumConfig,
    NeedleConfig,
    FactsConfig,
    ReviewsConfig,
    SentencesConfig,
    LabelledRecordsConfig,
    ConllConfig,
    QuestionsConfig,
    ChoiceRecordsConfig,
    SquadChoicesConfig,
)
NOISES = table(
    NoiseConfig,
    MaskTokensConfig,
    MaskSpansConfig,
    MaskNgramsConfig,
    MaskPhrasesConfig,
    MaskAndShuffleConfig,
    ReplacePhrasesConfig,
)
PAIRS = table(
    PairsConfig,
    StringPairsConfig,
    ParallelConfig,
    Multi30kConfig,
    CataloguesConfig,
    MessagesConfig,
    RecordPairsConfig,
    JsonPairsConfig,
    QMSumConfig,
    SciTLDRConfig,
    SciSummNetConfig,
    HubPairsConfig,
    DocstringsConfig,
    SquadPairsConfig,
)
SAMPLINGS = table(SourceSamplingConfig, ProportionalConfig, UniformConfig, TemperatureConfig, AnnealedConfig)
SOURCES = table(
    SourceConfig,
    StdlibConfig,
    FilesConfig,
    WikitextConfig,
    BooksConfig,
    HubConfig,
    PeriodicConfig,
    LabelledTrainingConfig,
    LagsConfig,
    TopicsConfig,
    TranslationsConfig,
)
TOKENIZERS = table(
    TokenizerConfig,
    BytesConfig,
    CharactersConfig,
    WordsConfig,
    BPEConfig,
    WordPieceConfig,
    PretrainedTokenizerConfig,
)
