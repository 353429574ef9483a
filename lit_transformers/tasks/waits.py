"""The values that the host reads from a device in a step of a task, so that it waits for the device.

All else is planned from shapes, and from numbers that batches hold on the host (``RowBatch.most_targets``). A run also
waits where it reads its own loss: for its curves every ``training.log_every`` updates, and at most five times a second
to end where it diverges (``DivergenceCheck``) and to show its progress (``ProgressReporter``), and once a batch to look
up cached features by their symbols (``training.cache_features``, ``cached_layers``). Mixers wait for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lit_transformers.batch import DataDescription, LanguageDescription
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.heads.next_symbol import LayerSymbolsConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig
from lit_transformers.tasks.permutation_lm import PermutationLMConfig
from lit_transformers.tasks.seq2seq import WRITTEN, Seq2SeqConfig
from lit_transformers.tasks.task import TaskConfig

Times = Callable[[TaskConfig, ModelConfig, DataDescription], float]


class Wait(NamedTuple):
    """The value that the host reads, and how often at most in a step of training and in one that measures: never for a
    config of another kind, and math.inf times where the number of reads follows from the data."""

    reads: str
    training: Times
    measuring: Times


def softmaxes(task: TaskConfig, model: ModelConfig, data: DataDescription) -> float:
    """Returns how many losses of a task an adaptive softmax of the model may compute; 0 of another softmax."""
    if not any(isinstance(tokens, AdaptiveTokenEmbeddingConfig) for tokens in vars(model).values()):
        return 0
    heads = task.all_heads(data).values()
    return sum(model.depth - 1 if isinstance(head, LayerSymbolsConfig) else 1 for head in heads)


def in_both_directions(task: TaskConfig, model: ModelConfig, data: DataDescription) -> float:
    """Returns 1 where a task reads some rows from their end, else 0."""
    return float(isinstance(task, PermutationLMConfig) and task.directions == "both")


def reaching(task: TaskConfig, model: ModelConfig, data: DataDescription) -> float:
    """Returns the number of tables of learned positions that count on through a text, which a language model reads in
    segments; else 0."""
    positions = model.positions
    if (
        not isinstance(positions, LearnedConfig)
        or positions.restart == "segment"
        or task.reads is not LanguageDescription
    ):
        return 0
    return model.depth if positions.per_layer else 1


def never(task: TaskConfig, model: ModelConfig, data: DataDescription) -> float:
    """Returns 0."""
    return 0


WAITS: Mapping[str, Wait] = {
    "adaptive softmax": Wait("how many targets of a loss each cluster has", softmaxes, softmaxes),
    "positions": Wait("how far continued texts reach into a table of positions", reaching, reaching),
    "directions": Wait("how many rows are read from their end", in_both_directions, in_both_directions),
    "decoding": Wait(
        "whether each sentence has ended, at every symbol",
        never,
        lambda task, model, data: math.inf if isinstance(task, Seq2SeqConfig) and WRITTEN & {*task.scores} else 0,
    ),
    "answers": Wait(
        "the best span of each row of a batch",
        never,
        lambda task, model, data: float(any(head.kind == "answer_span" for head in task.all_heads(data).values())),
    ),
    "minimal pairs": Wait(
        "which symbols of masked rows are scored, each in a pass",
        never,
        lambda task, model, data: float(task.kind == "masked_lm" and bool(getattr(data, "rules", ()))),
    ),
    "ranks": Wait(
        "how many rows the other ranks compare, where there are any",
        never,
        lambda task, model, data: float(any(head.kind == "contrast" for head in task.all_heads(data).values())),
    ),
}
"""The waits of the host, by their cause."""


def most_waits(task: TaskConfig, model: ModelConfig, data: DataDescription, training: bool = True) -> float:
    """Returns the most times that the host waits for a device in a step of training, or in one that measures."""
    return sum((wait.training if training else wait.measuring)(task, model, data) for wait in WAITS.values())
