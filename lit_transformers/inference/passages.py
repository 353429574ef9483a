"""Finds the passages of a file that a trained network takes for most similar to each question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from datamodules import DataError, RetrievalDataConfig, TrainedSymbols, tokenizer_from_dict
from datamodules.core.examples import TextRows
from datamodules.core.reading import damage, text_lines
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions, batches
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineTexts, Predictor
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.runs import load
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.retrieval import Retrieval, read_text
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["PassageFile", "PassageFinder", "passage_finder_of"]


class PassageFile(NamedTuple):
    """A file with a passage in every line, and how many of them are written for a question, the most similar first."""

    path: Path
    top: int = 5

    def read(self) -> list[tuple[int, str]]:
        """Returns the passages, each with the number of its line; empty lines hold none. Raises DataError where the
        file cannot be read, or holds no passage."""
        with damage(self.path), self.path.open("rb") as file:
            lines = [line.rstrip("\r\n") for line in text_lines(file, self.path.name)]
        passages = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not passages:
            raise DataError(f"{self.path}: holds no passage; write one in every line")
        return passages


class PassageFinder(Predictor):
    """Finds the passages of a file that are most similar to a question, equal ones in the order of the file."""

    def __init__(
        self,
        task: Retrieval,
        data: RetrievalDataConfig,
        trained: TrainedSymbols,
        file: PassageFile,
        options: LineOptions,
        form: LineFormat,
    ) -> None:
        """Reads the passages. Raises DataError where the file holds none."""
        self.symbols, self.longest_question = data.symbols(trained.to_dict()), data.longest_question
        longest = data.longest_question - 1 - len(self.symbols.end)
        tokenizer = tokenizer_from_dict(trained.tokenizer)
        rows_read = TextRows(tokenizer, longest, self.symbols.end)
        super().__init__(task, LineTexts(("question",), form), rows_read, options, ("passages",))
        self.task, self.top = task, file.top
        self.passages = file.read()
        rows = [
            torch.from_numpy(self.symbols.row(self.encode(text), data.longest_passage)) for _, text in self.passages
        ]
        vectors: dict[int, Tensor] = {}
        for indices in batches([len(row) for row in rows], options.batch_tokens):
            lengths = torch.tensor([len(rows[index]) for index in indices])
            inputs = pad_sequence([rows[index] for index in indices], batch_first=True)
            read = self.vectors_of(task.passage_reader, inputs, torch.arange(inputs.size(1)) < lengths[:, None])
            vectors |= dict(zip(indices, read, strict=True))
        self.vectors = torch.stack([vectors[index] for index in range(len(rows))])

    @torch.no_grad()
    def vectors_of(
        self, network: RowNetwork, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]
    ) -> Float[Tensor, "b d"]:
        """Returns the vectors of texts by one of the encoders."""
        torch.manual_seed(0)
        rows, padding_mask = rows.to(self.device), padding_mask.to(self.device)
        with arithmetic(self.training):
            return self.task.head.vectors(read_text(network, rows, padding_mask).hidden, padding_mask)

    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Mapping[str, Any]]:
        questions = self.vectors_of(self.task.evaluator(), rows, padding_mask)
        for scores in (questions.double() @ self.vectors.double().T).float():
            ordered = scores.sort(descending=True, stable=True)
            places = zip(ordered.indices[: self.top].tolist(), ordered.values[: self.top].tolist(), strict=True)
            passages = [
                {"line": self.passages[place][0], "score": round(score, DIGITS), "passage": self.passages[place][1]}
                for place, score in places
            ]
            yield {"passages": passages}


def passage_finder_of(
    checkpoint: Path, file: PassageFile, options: LineOptions, form: LineFormat = "text"
) -> PassageFinder:
    """Returns what finds passages by a checkpoint. Raises ConfigError where it is of another task or was not trained on
    texts, and DataError where the file holds no passage."""
    task, config, extra = load(checkpoint)
    trained = TrainedSymbols.of(extra)
    if not isinstance(task, Retrieval) or not isinstance(config.data, RetrievalDataConfig):
        raise ConfigError(f"a run of the task {config.task.kind} searches no passages; omit it", "--passages")
    if trained.tokenizer is None:
        reason = f"was trained on {config.data.name}, which are no texts; measure it by: evaluate"
        raise ConfigError(reason, str(checkpoint))
    require_numbers(task, checkpoint)
    return PassageFinder(task, config.data, trained, file, options, form)
