"""Objectives, one per file. A new one needs its file and a line here."""

from lit_transformers.config import table
from lit_transformers.tasks.bilm import BiLMConfig
from lit_transformers.tasks.causal_lm import CausalLMConfig
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.tasks.contrastive import ContrastiveConfig
from lit_transformers.tasks.masked_lm import MaskedLMConfig
from lit_transformers.tasks.multi_label import MultiLabelConfig
from lit_transformers.tasks.multi_task import MultiTaskConfig
from lit_transformers.tasks.multiple_choice import MultipleChoiceConfig
from lit_transformers.tasks.permutation_lm import PermutationLMConfig
from lit_transformers.tasks.question_answering import QuestionAnsweringConfig
from lit_transformers.tasks.regression import RegressionConfig
from lit_transformers.tasks.replaced_tokens import ReplacedTokensConfig, SymbolGeneratorConfig
from lit_transformers.tasks.retrieval import RetrievalConfig
from lit_transformers.tasks.seq2seq import Seq2SeqConfig
from lit_transformers.tasks.strings import StringsConfig
from lit_transformers.tasks.tagging import TaggingConfig
from lit_transformers.tasks.task import Task, TaskConfig

TASKS = table(
    TaskConfig,
    CausalLMConfig,
    ClassificationConfig,
    MultiLabelConfig,
    RegressionConfig,
    TaggingConfig,
    MultipleChoiceConfig,
    RetrievalConfig,
    MultiTaskConfig,
    StringsConfig,
    Seq2SeqConfig,
    MaskedLMConfig,
    ReplacedTokensConfig,
    ContrastiveConfig,
    PermutationLMConfig,
    BiLMConfig,
    QuestionAnsweringConfig,
    implied="causal_lm",
)

__all__ = [
    "TASKS",
    "BiLMConfig",
    "CausalLMConfig",
    "ClassificationConfig",
    "ContrastiveConfig",
    "MaskedLMConfig",
    "MultiLabelConfig",
    "MultiTaskConfig",
    "MultipleChoiceConfig",
    "PermutationLMConfig",
    "QuestionAnsweringConfig",
    "RegressionConfig",
    "ReplacedTokensConfig",
    "RetrievalConfig",
    "Seq2SeqConfig",
    "StringsConfig",
    "SymbolGeneratorConfig",
    "TaggingConfig",
    "Task",
    "TaskConfig",
]
