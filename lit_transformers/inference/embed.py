"""Computes the vector of each line with a trained encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from datamodules import LabelledDataConfig, RetrievalDataConfig, RowDataConfig, TrainedSymbols, tokenizer_from_dict
from datamodules.core.examples import TextRows
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError
from lit_transformers.heads.pooling import pooled
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import of_one_source
from lit_transformers.inference.predict_symbols import row_batch
from lit_transformers.inference.predictor import LineFormat, LineRows, LineTexts, Predictor, load_for_lines
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks import Task
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.tasks.masked_lm import MaskedLM, read_rows
from lit_transformers.tasks.retrieval import Retrieval, read_text

__all__ = ["Embedder", "embedder_of"]

Vectors = Callable[[LineRows], Float[Tensor, "b d"]]
"""Returns the vector of each row."""


class Embedder(Predictor):
    """Computes the vector of each text, by a function of its rows."""

    ability = "embed"

    def __init__(self, task: Task, rows: TextRows, vectors: Vectors, options: LineOptions, form: LineFormat) -> None:
        super().__init__(task, LineTexts(("text",), form), rows, options, ("vector",))
        self.vectors = vectors

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        for vector in self.vectors(read).double().tolist():
            yield {"vector": [float(f"{number:.6g}") for number in vector]}


def embedder_of(checkpoint: Path, options: LineOptions, form: LineFormat = "text", head: str | None = None) -> Embedder:
    """Returns the embedder of a checkpoint. For a run of retrieval it computes the vectors that the run compares; for a
    run on single texts or a masked_lm, the mean of the last layer over the tokens of a row. Raises ConfigError for
    other runs."""
    whole, config, extra = load_for_lines(checkpoint)
    require_numbers(whole, checkpoint)
    task, data, trained = of_one_source(whole, config.data, TrainedSymbols.of(extra), head, str(checkpoint))
    if isinstance(task, Retrieval) and isinstance(data, RetrievalDataConfig) and trained.tokenizer is not None:
        end = data.symbols(trained.to_dict()).end
        rows = TextRows(tokenizer_from_dict(trained.tokenizer), data.longest_question - 1 - len(end), end)
        return Embedder(task, rows, lambda read: compared_vectors(task, read), options, form)
    if isinstance(task, MaskedLM) and isinstance(data, RowDataConfig) and extra.get("tokenizer"):
        tokenizer = tokenizer_from_dict(extra["tokenizer"])
        rows = TextRows(tokenizer, task.data.length - 2, (RowSymbols.of(tokenizer).separator,))
        return Embedder(task, rows, lambda read: row_vectors(task, read), options, form)
    text_rows = data.source.text_rows(trained) if isinstance(data, LabelledDataConfig) and trained.tokenizer else None
    if isinstance(task, LabelledTask) and text_rows is not None and text_rows.texts == 1:
        return Embedder(task, text_rows, lambda read: text_vectors(task, read), options, form)
    reason = f"reads no single texts, of which vectors could be written ({task.config.kind} on {data.kind})"
    raise ConfigError(reason, str(checkpoint))


def compared_vectors(task: Retrieval, read: LineRows) -> Float[Tensor, "b d"]:
    """Returns the vectors that retrieval compares, by the encoder of questions."""
    return task.head.vectors(read_text(task.evaluator(), read.rows, read.padding_mask).hidden, read.padding_mask)


def row_vectors(task: MaskedLM, read: LineRows) -> Float[Tensor, "b d"]:
    """Returns the mean of the last layer over the tokens of each row."""
    return pooled(read_rows(task.evaluator(), row_batch(task, read)).hidden, read.padding_mask, "mean")


def text_vectors(task: LabelledTask, read: LineRows) -> Float[Tensor, "b d"]:
    """Returns the mean, over the tokens of each row, of the layers that the heads read."""
    numbers = torch.arange(len(read.rows))
    unknown = torch.zeros(len(read.rows), dtype=torch.long, device=read.rows.device)
    batch = LabelledBatch(read.rows, read.padding_mask, unknown, None, numbers, None, padded=read.padded)
    return pooled(task.evaluation_reading(batch).hidden, read.padding_mask, "mean")
