"""Finds the passages of a file whose vectors are most similar to the vector of a question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from datamodules import DataError, RetrievalDataConfig, TrainedSymbols, cache_folder, tokenizer_from_dict
from datamodules.core.examples import TextRows
from datamodules.core.index import make_once
from datamodules.core.reading import damage, text_lines
from datamodules.core.tokenizers import key_of
from lit_transformers.checked_files import CheckedFile, CheckedWriter, Extent, VectorLayout
from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.inference.lines import LineOptions, batches, padded
from lit_transformers.inference.predictor import (
    DIGITS,
    LineFormat,
    LineRows,
    LineTexts,
    Predictor,
    load_for_lines,
    seed,
)
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.records.files import write_json
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.features import weights_digest
from lit_transformers.tasks.retrieval import Retrieval, read_text

__all__ = ["PassageFinder", "PassageLine", "passage_finder_of", "passages_in"]

VECTORS, META = "vectors", "meta.json"
TOGETHER = 1024
"""The number of passages whose symbols, or whose vectors in double precision, are in memory at once."""


class PassageLine(NamedTuple):
    """A passage: the number of its line in its file, and its text."""

    line: int
    text: str


def passages_in(path: Path) -> Iterator[PassageLine]:
    """Yields the passages of a file, one for each line that is not empty. Raises DataError if the file cannot be read
    or holds no passage."""
    is_empty = True
    with damage(path), path.open("rb") as file:
        for number, line in enumerate(text_lines(file, path.name), 1):
            if line.strip():
                is_empty = False
                yield PassageLine(number, line.rstrip("\r\n"))
    if is_empty:
        raise DataError(f"{path}: holds no passage; write one in every line")


class PassageFinder(Predictor):
    """Finds the passages that are most similar to a question. top: number of passages written for each question, the
    most similar first; passages with equal scores keep their order. code: a hash of the code that computes vectors."""

    ability = "search"

    def __init__(
        self,
        task: Retrieval,
        data: RetrievalDataConfig,
        trained: TrainedSymbols,
        passages: Sequence[PassageLine],
        options: LineOptions,
        form: LineFormat,
        top: int,
        code: str,
    ) -> None:
        """Computes the vectors of the passages, and caches them below LIT_CACHE for later processes."""
        self.symbols, self.longest_question = data.symbols(trained.to_dict()), data.longest_question
        longest = data.longest_question - 1 - len(self.symbols.end)
        tokenizer = tokenizer_from_dict(trained.tokenizer)
        rows_read = TextRows(tokenizer, longest, self.symbols.end)
        super().__init__(task, LineTexts(("question",), form), rows_read, options, ("passages",))
        self.task, self.top, self.passages = task, top, passages
        self.layout = VectorLayout("float32", task.model_config.dim)
        self.vectors = self.vectors_on_disk(data.longest_passage, code)

    def vectors_on_disk(self, longest: int, code: str) -> CheckedFile:
        """Returns the file of the vectors of the passages, and writes it if it does not exist. Its name depends on the
        weights, the tokenizer, the arithmetic, the code and the texts. longest: number of symbols read of a passage.
        Raises ConfigError if the file is damaged."""
        texts = hashlib.sha256()
        for number in range(len(self.passages)):
            texts.update(f"{self.passages[number].text}\n".encode())
        decisive: list[Plain] = [
            weights_digest(self.task.passage_reader),
            self.task.model_config.to_dict(),
            self.task.config.to_dict(),
            key_of(self.tokenizer),
            [longest, self.batch_tokens, self.training.tf32, self.training.attention_kernel, str(self.device)],
            [self.options.precision, code, texts.hexdigest()],
        ]
        folder = cache_folder() / "passage_vectors" / canonical_hash(decisive, 32)

        def make(temporary: Path) -> None:
            writer = CheckedWriter(temporary / VECTORS)
            for vectors in self.vectors_of_passages(longest):
                writer.append(self.layout.written(vectors))
            writer.save()
            writer.close()
            write_json(temporary / META, [*writer.extent])

        make_once(folder, META, make)
        try:
            extent = Extent(*json.loads((folder / META).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"is a damaged cache ({error}); remove the folder", str(folder)) from None
        return CheckedFile(folder / VECTORS, extent)

    def vectors_of_passages(self, longest: int) -> Iterator[Float[Tensor, "n d"]]:
        """Computes and yields the vectors (n, d) of the passages, ``TOGETHER`` at a time. longest: number of symbols
        read of a passage."""
        for first in range(0, len(self.passages), TOGETHER):
            some = (self.passages[number] for number in range(first, min(first + TOGETHER, len(self.passages))))
            rows = [torch.from_numpy(self.symbols.row(self.encode(passage.text), longest)) for passage in some]
            vectors: dict[int, Tensor] = {}
            for indices in batches([len(row) for row in rows], self.batch_tokens):
                inputs, padding_mask = padded([rows[index] for index in indices])
                read = self.vectors_of(self.task.passage_reader, inputs, padding_mask)
                vectors |= zip(indices, read, strict=True)
            yield torch.stack([vectors[index] for index in range(len(rows))])

    @torch.no_grad()
    def vectors_of(
        self, network: RowNetwork, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]
    ) -> Float[Tensor, "b d"]:
        """Returns the vectors (b, d) of texts (b, t), computed by one of the two encoders."""
        seed(self.device)
        rows, padding_mask = rows.to(self.device), padding_mask.to(self.device)
        with self.arithmetic():
            return self.task.head.vectors(read_text(network, rows, padding_mask).hidden, padding_mask)

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        rows, _, padding_mask, _, _ = read
        for nearest in self.nearest(rows, padding_mask):
            entries = [(self.passages[number], round(score, DIGITS)) for number, score in nearest]
            yield {"passages": [{"line": line, "score": score, "passage": text} for (line, text), score in entries]}

    def nearest(self, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]) -> Iterator[list[tuple[int, float]]]:
        """Yields, for each question (b, t), the numbers and scores of the most similar passages."""
        questions = self.vectors_of(self.task.evaluator(), rows, padding_mask)
        scores = torch.zeros(len(questions), 0, device=questions.device)
        numbers = torch.zeros(len(questions), 0, dtype=torch.long)
        first = 0
        for some in self.every_vector():
            own = (questions.double() @ some.to(questions.device).double().T).float()
            places = torch.arange(first, first + len(some)).expand(len(questions), -1)
            ordered = torch.cat([scores, own], dim=1).sort(descending=True, stable=True)
            scores, best = ordered.values[:, : self.top], ordered.indices[:, : self.top].cpu()
            numbers = torch.cat([numbers, places], dim=1).gather(1, best)
            first += len(some)
        for pairs in zip(numbers.tolist(), scores.tolist(), strict=True):
            yield [*zip(*pairs, strict=True)]

    def every_vector(self) -> Iterator[Float[Tensor, "n d"]]:
        """Reads and yields the vectors (n, d) of all passages, ``TOGETHER`` at a time."""
        for first in range(0, len(self.passages), TOGETHER):
            count = min(TOGETHER, len(self.passages) - first)
            begin, size = self.layout.size(first), self.layout.size(count)
            yield self.layout.read(self.vectors.read(begin, size), count)

    def nearest_of(self, questions: Sequence[str]) -> list[list[tuple[int, float]]]:
        """Returns, for the text of each question, the numbers and scores of the most similar passages."""
        rows = [torch.from_numpy(self.row([self.encode(question)])).long() for question in questions]
        inputs, padding_mask = padded([row[:, 0] for row in rows])
        return [*self.nearest(inputs, padding_mask)]


def passage_finder_of(
    checkpoint: Path,
    passages: Sequence[PassageLine],
    options: LineOptions,
    form: LineFormat = "text",
    top: int = 5,
    place: str = "--passages",
) -> PassageFinder:
    """Returns the predictor that finds the ``top`` most similar passages by a checkpoint. Raises ConfigError if the
    checkpoint belongs to another task or was not trained on texts. place: the option that gives the checkpoint, for
    messages."""
    task, config, extra = load_for_lines(checkpoint)
    trained = TrainedSymbols.of(extra)
    if not isinstance(task, Retrieval) or not isinstance(config.data, RetrievalDataConfig):
        raise ConfigError(f"a run of the task {config.task.kind} searches no passages; omit it", place)
    if trained.tokenizer is None:
        reason = f"was trained on {config.data.name}, which are not texts; measure it by: evaluate"
        raise ConfigError(reason, str(checkpoint))
    require_numbers(task, checkpoint)
    code = code_hash(config, (__name__,))
    return PassageFinder(task, config.data, trained, passages, options, form, top, code)
