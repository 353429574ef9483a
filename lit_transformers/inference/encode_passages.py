"""Computes the lower states of the passages of a file, once for all questions (arXiv:2005.00697)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from datamodules import LabelledDataConfig, QuestionsConfig, TrainedSymbols
from datamodules.core.tokenizers import Symbols, key_of
from datamodules.core.trained import require_tokenizer
from datamodules.labelled.question_windows import QuestionWindows
from lit_transformers.checked_files import Precision, VectorLayout
from lit_transformers.config import ConfigError, Plain, canonical_hash, plain_leaves
from lit_transformers.inference.lines import ReportLines, batches, padded
from lit_transformers.inference.passage_states import ANEW, Manifest, PassageStatesWriter
from lit_transformers.inference.passages import PassageLine, passages_in
from lit_transformers.inference.predictor import load_for_lines
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.features import weights_digest
from lit_transformers.tasks.question_answering import QuestionAnswering
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["PassageReader", "encode_passages", "passage_reader_of"]

GROUP = 8
"""Batches of windows in a group. The windows of a group are sorted by length, computed, and saved together."""


class PassageReader(NamedTuple):
    """A trained network for question answering whose lower layers read passages apart from questions.

    width: tokens of a question with [CLS], [SEP] and padding. dependencies: the weights, tokenizer and windows that the
    states of passages depend on, by name.
    """

    task: QuestionAnswering
    windows: QuestionWindows
    width: int
    dependencies: dict[str, Plain]

    @property
    def network(self) -> RowNetwork:
        network: RowNetwork = self.task.evaluator()
        return network

    def ranges(self, passage: int, name: str) -> list[range]:
        """Returns the symbols of a passage in each of its windows, which are the same for every question. passage:
        number of symbols of the passage. name: of the passage, for messages."""
        return self.windows.ranges(0, passage, name)

    @torch.no_grad()
    def states(self, rows: Sequence[Symbols]) -> list[Float[Tensor, "p d"]]:
        """Returns the lower states (p, d) of windows, given the p symbols of each with its final [SEP]."""
        torch.manual_seed(0)  # as in an evaluation, for mixers that draw random numbers
        symbols, padding_mask = padded([torch.from_numpy(row).long() for row in rows])
        with arithmetic(self.task.training_config):
            states = self.network.lower_states(symbols.to(self.task.device), padding_mask.to(self.task.device))
        return [own[: len(row)] for own, row in zip(states, rows, strict=True)]


def passage_reader_of(checkpoint: Path, threshold: float | None = None) -> PassageReader:
    """Returns the reader of a checkpoint. Raises ConfigError if its network does not read passages apart from
    questions.

    threshold: the threshold of no answer that replaces the threshold of the task; None to keep it.
    """
    task, config, extra = load_for_lines(checkpoint, None if threshold is None else {"task.threshold": threshold})
    require_numbers(task, checkpoint)
    source = config.data.source if isinstance(config.data, LabelledDataConfig) else None
    if not isinstance(task, QuestionAnswering) or not isinstance(source, QuestionsConfig):
        reason = f"a run of the task {config.task.kind} on {config.data.name} answers no questions on passages"
        raise ConfigError(f"{reason}; give one of question_answering", str(checkpoint))
    if source.question_width is None:
        reason = "the windows of a passage depend on its question; set a width, and train again"
        raise ConfigError(reason, f"{checkpoint}: data.source.question_width")
    require_apart(task, checkpoint)
    task.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    windows = source.windows(require_tokenizer(TrainedSymbols.of(extra).tokenizer))
    return PassageReader(task, windows, source.question_width, dependencies_of(task, source, windows))


def require_apart(task: QuestionAnswering, checkpoint: Path) -> None:
    """Raises ConfigError if a network cannot compute states of passages, or its heads read more than the last layer."""
    if not task.combination.last_alone:
        reason = "its head reads several layers, and a cache holds one"
        raise ConfigError(f"{reason}; train without it", f"{checkpoint}: task.combined_layers")
    try:
        task.evaluator().lower_states(torch.zeros(1, 1, dtype=torch.long))
    except ConfigError as error:
        raise ConfigError(error.reason, f"{checkpoint}: {error.path}") from None


def dependencies_of(task: QuestionAnswering, source: QuestionsConfig, windows: QuestionWindows) -> dict[str, Plain]:
    """Returns the weights, tokenizer and windows that states of passages depend on, by name."""
    model = task.model_config.override(task.config.evaluation)
    return {
        "tokenizer": canonical_hash(key_of(windows.tokenizer), 32),
        **{f"data.source.{name}": source.get(name) for name in ("question_width", "length", "stride")},
        **{f"model.{path}": value for path, value in plain_leaves(model.to_dict())},
        "weights": weights_digest(task.evaluator().lower_part()),
    }


class EncodedPassage(NamedTuple):
    """A passage with its windows. ranges: the symbols of the passage in each window. rows: the symbols of each window,
    with [SEP]."""

    passage: PassageLine
    ranges: Sequence[range]
    rows: Sequence[Symbols]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


def encode_passages(
    checkpoint: Path,
    passages: Path,
    folder: Path,
    precision: Precision = "float32",
    batch_tokens: int = 4096,
    report: ReportLines | None = None,
) -> Manifest:
    """Computes the lower states of the passages in a file, one passage in each line. Writes them to a folder, and
    returns its manifest.

    If the folder holds the states of the first passages of the file, continues after them. Saves after each group of
    batches. Raises ConfigError if the folder holds other states, and DataError if the file cannot be read.
    """
    reader = passage_reader_of(checkpoint)
    layout = VectorLayout(precision, reader.task.model_config.dim)
    with PassageStatesWriter(folder, reader.dependencies, layout) as writer:
        held, group = writer.passages, list[EncodedPassage]()
        number = -1
        for number, passage in enumerate(passages_in(passages)):
            if number < held:
                writer.require_held(number, passage)
                reported(report, [passage])
                continue
            group.append(encoded(reader, passage))
            if sum(read.tokens for read in group) >= GROUP * batch_tokens:
                write_group(reader, writer, group, batch_tokens)
                reported(report, [read.passage for read in group])
                group = []
        if number + 1 < held:
            reason = f"holds {held:,} passages, and {passages} has {number + 1:,}; {ANEW}"
            raise ConfigError(reason, str(folder))
        write_group(reader, writer, group, batch_tokens)
        reported(report, [read.passage for read in group])
        return writer.finish()


def reported(report: ReportLines | None, passages: Sequence[PassageLine]) -> None:
    """Reports the number and the bytes of passages that the folder holds now."""
    if report:
        report(len(passages), sum(len(passage.text.encode()) + 1 for passage in passages))


def encoded(reader: PassageReader, passage: PassageLine) -> EncodedPassage:
    """Returns a passage with its windows."""
    symbols = reader.windows.tokenizer.encode(passage.text.encode())
    ranges = reader.ranges(len(symbols), f"line {passage.line}")
    rows = [np.append(symbols[window.start : window.stop], reader.windows.separator) for window in ranges]
    return EncodedPassage(passage, ranges, rows)


def write_group(
    reader: PassageReader, writer: PassageStatesWriter, group: Sequence[EncodedPassage], batch_tokens: int
) -> None:
    """Computes the states of passages in batches of windows of similar length. Writes them in the order of the file."""
    rows = [row for read in group for row in read.rows]
    states: dict[int, Float[Tensor, "p d"]] = {}
    for indices in batches([len(row) for row in rows], batch_tokens):
        states |= zip(indices, reader.states([rows[index] for index in indices]), strict=True)
    number = 0
    for read in group:
        stop = number + len(read.rows)
        windows = [*zip(read.ranges, (states[index] for index in range(number, stop)), strict=True)]
        writer.add(read.passage, windows)
        number = stop
    writer.save()
