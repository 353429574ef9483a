"""Translates or summarizes lines of text with a trained encoder-decoder, one output line for every input line."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch

from datamodules import DataError, PairsConfig, tokenizers_of
from datamodules.core.reading import without_mark
from datamodules.core.tokenizers import Symbols
from lit_transformers.config import ConfigError, Plain
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig
from lit_transformers.runs import load
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.seq2seq import Seq2Seq

__all__ = ["Counts", "TranslationOptions", "Translator", "size_of"]

LINE_ENDS = re.compile(r"\r\n|[\r\n]")
NAMED = 10
"""The most cut or refused lines that a message names by their number."""

Overlong = Literal["cut", "refuse"]
Purpose = Literal["translate", "summarize"]
ReportLines = Callable[[int, int], None]
"""Receives the numbers of lines and of bytes that were processed since its last call."""


class TranslationOptions(NamedTuple):
    """The options of a translation.

    beams, length_penalty: None for those that the run was measured with; 1 beam takes the likeliest symbol each time.
    batch_tokens: source symbols of a batch, with padding; window: lines that are read and sorted by length before the
    first is written. overlong: a line longer than those of training is cut, or its output is empty. source, target: the
    requested languages; purpose: the requested task, where a checkpoint for the other one is to be refused.
    """

    beams: int | None = None
    length_penalty: float | None = None
    batch_tokens: int = 4096
    window: int = 1000
    overlong: Overlong = "cut"
    source: str | None = None
    target: str | None = None
    purpose: Purpose | None = None


@dataclass
class Counts:
    """Counts of the lines and their symbols; ``cut`` and ``refused`` hold the numbers of these lines, from 1."""

    lines: int = 0
    empty: int = 0
    symbols: int = 0
    unknown: int = 0
    cut: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def messages(self, longest: int) -> Iterator[str]:
        """Yields a sentence for each count; ``longest``: the most symbols of a training source, with the boundary."""
        if not self.lines:
            yield "nothing came in, so nothing was written"
            return
        yield f"lines: {self.lines:,}"
        if self.empty:
            yield f"empty, and left so: {self.empty:,}"
        if self.cut:
            yield f"cut to {longest - 1} symbols, the longest of training: {named(self.cut)}"
        if self.refused:
            yield f"refused and left empty, longer than the {longest - 1} symbols of training: {named(self.refused)}"
        if self.unknown:
            yield f"unknown symbols: {self.unknown:,} of {self.symbols:,}"


def named(numbers: Sequence[int]) -> str:
    """Formats how many lines there are, and the numbers of the first ones."""
    first = ", ".join(str(number) for number in numbers[:NAMED])
    return f"{len(numbers):,} (line {first}{', ...' if len(numbers) > NAMED else ''})"


class SourceLine(NamedTuple):
    """One input line: its bytes with the line end, and its symbols with the boundary; None for an empty output."""

    size: int
    symbols: Symbols | None


class Translator:
    """Writes outputs for lines with a trained network. ``counts`` covers all lines so far."""

    def __init__(self, checkpoint: Path, wanted: TranslationOptions) -> None:
        """Raises ConfigError or DataError where the checkpoint does not write texts, or not in these languages."""
        task, config, extra = load(checkpoint)
        if not isinstance(task, Seq2Seq):
            raise ConfigError(
                f"only a seq2seq makes a text of another, and this is a run of {config.task.kind}", "task"
            )
        require_numbers(task, checkpoint)
        require_purpose(wanted.purpose, config.data.get("source"), extra["languages"])
        require_languages(wanted, extra["languages"])
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.task: Seq2Seq = task.to(device)
        self.task.config = task.config.override({"decoding": decoding(task.config.decoding, wanted)})
        self.wanted, self.counts, self.longest = wanted, Counts(), task.data.source_length
        self.tokenizer, _ = tokenizers_of(extra)

    def messages(self) -> Iterator[str]:
        """Yields a sentence for each count of the lines so far."""
        return self.counts.messages(self.longest)

    def write(self, lines: Iterable[bytes], report_lines: ReportLines | None = None) -> Iterator[str]:
        """Yields the output of every line, in order and without line ends, a window at a time.

        Raises DataError for a line that is not UTF-8, after the outputs of all lines before it.
        """
        window: list[SourceLine] = []
        try:
            for number, line in enumerate(lines, start=1):
                window.append(self.read(number, without_mark(line) if number == 1 else line))
                if len(window) == self.wanted.window:
                    ready, window = window, []
                    yield from self.of_window(ready, report_lines)
        except DataError:
            yield from self.of_window(window, report_lines)
            raise
        yield from self.of_window(window, report_lines)

    def read(self, number: int, line: bytes) -> SourceLine:
        """Encodes a line and adds it to the counts. Raises DataError where it is not UTF-8."""
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            location = f"line {number}: byte {error.start + 1} is no UTF-8 ({line[error.start]:#04x})"
            raise DataError(f"{location}; convert the text, as with: iconv -f latin1 -t utf8") from None
        counts, boundary = self.counts, self.task.data.source.boundary
        counts.lines += 1
        if not text.strip():
            counts.empty += 1
            return SourceLine(len(line), None)
        symbols = self.tokenizer.encode(text.encode())
        counts.symbols += len(symbols)
        if self.tokenizer.unknown is not None:
            counts.unknown += int((symbols == self.tokenizer.unknown).sum())
        if len(symbols) >= self.longest:
            if self.wanted.overlong == "refuse":
                counts.refused.append(number)
                return SourceLine(len(line), None)
            counts.cut.append(number)
        return SourceLine(len(line), np.append(symbols[: self.longest - 1], boundary))

    def of_window(self, window: Sequence[SourceLine], report_lines: ReportLines | None) -> Sequence[str]:
        """Returns the outputs of a window of lines; lines of similar length are decoded together."""
        outputs = [""] * len(window)
        for indices in batches([0 if line.symbols is None else len(line.symbols) for line in window], self.wanted):
            rows = [torch.from_numpy(window[index].symbols).long() for index in indices]
            source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            lengths = torch.tensor([len(row) for row in rows])
            padding_mask, device = torch.arange(source.size(1)) < lengths[:, None], self.task.device
            for index, text in zip(indices, self.task.write(source.to(device), padding_mask.to(device)), strict=True):
                outputs[index] = LINE_ENDS.sub(" ", text.rstrip("\r\n"))  # one line, whatever a model generates
            if report_lines:
                report_lines(len(indices), sum(window[index].size for index in indices))
        empty_sizes = [line.size for line in window if line.symbols is None]
        if report_lines and empty_sizes:
            report_lines(len(empty_sizes), sum(empty_sizes))
        return outputs


def batches(sizes: Sequence[int], wanted: TranslationOptions) -> Iterator[list[int]]:
    """Yields batches of indices, sorted by size, the longest first; indices of size 0 are in no batch."""
    batch: list[int] = []
    for index in sorted((index for index, size in enumerate(sizes) if size), key=lambda index: -sizes[index]):
        if batch and (len(batch) + 1) * sizes[batch[0]] > wanted.batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def decoding(trained: DecodingConfig, wanted: TranslationOptions) -> DecodingConfig:
    """Returns the requested decoding, by default that of the run. Raises ConfigError for a penalty without beams."""
    limits = {name: getattr(trained, name) for name in ("ratio", "extra", "cache")}
    if wanted.beams == 1:
        trained = GreedyConfig(**limits)
    elif wanted.beams is not None:
        beam_config = trained if isinstance(trained, BeamConfig) else BeamConfig(**limits)
        trained = beam_config.override({"beams": wanted.beams})
    if wanted.length_penalty is None:
        return trained
    if not isinstance(trained, BeamConfig):
        raise ConfigError(f"{trained.kind} decoding compares no lengths; give more --beams", "--length-penalty")
    return trained.override({"length_penalty": wanted.length_penalty})


def require_purpose(purpose: Purpose | None, source: PairsConfig, languages: Plain) -> None:
    """Raises ConfigError where a translator is to summarize, or a summarizer is to translate.

    Pairs of two languages are translations. Where the languages of files are not named, both purposes are allowed.
    """
    if purpose == "summarize" and languages and languages[0] != languages[1]:
        reason = f"this checkpoint translates from {languages[0]} to {languages[1]}; use: translate"
        raise ConfigError(reason, purpose)
    if purpose == "translate" and source.summaries:
        raise ConfigError(f"this checkpoint was trained on summaries, {source.kind}; use: summarize", purpose)


def require_languages(wanted: TranslationOptions, trained: Plain) -> None:
    """Raises ConfigError where the requested languages are not those that the network was trained on."""
    for option, requested, available in zip(
        ("--from", "--to"), (wanted.source, wanted.target), trained or (None, None), strict=True
    ):
        if requested is not None and requested != available:
            trained_on = (
                f"from {trained[0]} to {trained[1]}" if trained else "on texts whose languages its data do not name"
            )
            raise ConfigError(f"{requested} was asked for, and this checkpoint was trained {trained_on}", option)


def size_of(file: BinaryIO) -> int | None:
    """Returns the size of a file in bytes, or None where it is not a regular file."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
