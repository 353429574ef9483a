"""Runs lines through a trained network: one output line for each input line, in order, and counts of all lines."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from datamodules import DataError, Tokenizer
from datamodules.core.reading import without_mark
from datamodules.core.tokenizers import Symbols
from lit_transformers.checked_files import Precision
from lit_transformers.config import ConfigError

__all__ = [
    "Counts",
    "LineOptions",
    "LineWriter",
    "Overlong",
    "ReportLines",
    "batches",
    "padded",
    "size_of",
    "usual_batch_tokens",
]

NAMED = 10
"""The most cut or refused lines that a message names by their number."""

Overlong = Literal["cut", "refuse"]
ReportLines = Callable[[int, int], None]
"""Receives the numbers of lines and of bytes that were processed since its last call."""


class LineOptions(NamedTuple):
    """How lines are read.

    batch_tokens: symbols of a batch, with padding; None for ``usual_batch_tokens``. window: lines that are read and
    sorted by length before the first is written. overlong: whether a line longer than those of training is cut, or has
    an empty output. precision: of the network's passes.
    """

    batch_tokens: int | None = None
    window: int = 1000
    overlong: Overlong = "cut"
    precision: Precision = "float32"


@dataclass
class Counts:
    """Counts of the lines and their symbols. ``cut``, ``refused`` and ``unreadable`` hold the numbers of these lines,
    from 1; an unreadable line has a text of unknown symbols only."""

    lines: int = 0
    empty: int = 0
    symbols: int = 0
    unknown: int = 0
    cut: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)

    def messages(self, longest: int) -> Iterator[str]:
        """Yields a sentence for each count; ``longest``: the most symbols of a line in training."""
        if not self.lines:
            yield "nothing came in, so nothing was written"
            return
        yield f"lines: {self.lines:,}"
        if self.empty:
            yield f"empty, and left so: {self.empty:,}"
        if self.cut:
            yield f"cut to {longest} symbols, the longest of training: {named(self.cut)}"
        if self.refused:
            yield f"refused and left empty, longer than the {longest} symbols of training: {named(self.refused)}"
        if self.unknown:
            yield f"unknown symbols: {self.unknown:,} of {self.symbols:,}"
        if self.unreadable:
            yield f"lines with a text of unknown symbols only: {named(self.unreadable)}"


def named(numbers: Sequence[int]) -> str:
    """Formats how many lines there are, and the numbers of the first ones."""
    first = ", ".join(str(number) for number in numbers[:NAMED])
    return f"{len(numbers):,} (line {first}{', ...' if len(numbers) > NAMED else ''})"


class SourceLine(NamedTuple):
    """One input line: its bytes with the line end, its rows, none for an empty output, and its texts."""

    size: int
    rows: Sequence[Symbols] = ()
    texts: tuple[str, ...] = ()


class LineWriter(ABC):
    """Writes outputs for lines with a trained network. ``counts`` covers all lines so far, ``longest`` is the most
    symbols of a line that are read. ``empty``: the output of a line without text. ``ability``: its action, as a verb.
    """

    empty: str
    ability: str

    def __init__(self, options: LineOptions, tokenizer: Tokenizer, longest: int) -> None:
        self.options, self.tokenizer, self.longest, self.counts = options, tokenizer, longest, Counts()
        self.batch_tokens = options.batch_tokens or usual_batch_tokens()

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        """Hook: returns the row of a line, token by token, given the symbols of its texts. Cuts texts that are too
        long."""
        raise NotImplementedError

    def rows_of(self, symbols: Sequence[Symbols]) -> Sequence[Symbols]:
        """Hook: returns the rows of a line, given the symbols of its texts. By default only ``row``."""
        return [self.row(symbols)]

    @abstractmethod
    def outputs(
        self,
        rows: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Sequence[Any]:
        """Returns the output of each row. ``padded``: whether any symbol is padding. ``texts``: the texts of the line
        of each row."""

    def written(self, texts: tuple[str, ...], outputs: Sequence[Any]) -> str:
        """Hook: returns the output line of a line, given the outputs of its rows. By default the output of its only
        row."""
        return str(outputs[0])

    def texts(self, line: str) -> tuple[str, ...]:
        """Hook: returns the texts of a line; by default it is one. Raises ConfigError, which names the fault."""
        return (line,)

    def encode(self, text: str) -> Symbols:
        """Hook: returns the symbols of a text; by default all of it is encoded at once."""
        return self.tokenizer.encode(text.encode())

    def encode_each(self, texts: Sequence[str]) -> list[Symbols]:
        """Hook: returns the symbols of each text of a line. By default each text is encoded by itself."""
        return [self.encode(text) for text in texts]

    def is_empty(self, texts: tuple[str, ...]) -> bool:
        """Hook: returns whether a line has nothing to read. By default, whether one of its texts is empty."""
        return not all(text.strip() for text in texts)

    def read_at_once(self, symbols: Sequence[Symbols]) -> int:
        """Hook: returns the number of symbols of a line in one row. By default the symbols of all its texts."""
        return sum(map(len, symbols))

    def messages(self) -> Iterator[str]:
        """Hook: yields a sentence for each count of the lines so far."""
        return self.counts.messages(self.longest)

    def write(self, lines: Iterable[bytes], report_lines: ReportLines | None = None) -> Iterator[str]:
        """Yields the output of every line, in order and without line ends, a window at a time.

        Raises DataError for a line that cannot be read, after the outputs of all lines before it.
        """
        window: list[SourceLine] = []
        try:
            for number, line in enumerate(lines, start=1):
                window.append(self.read(number, without_mark(line) if number == 1 else line))
                if len(window) == self.options.window:
                    ready, window = window, []
                    yield from self.of_window(ready, report_lines)
        except DataError:
            yield from self.of_window(window, report_lines)
            raise
        yield from self.of_window(window, report_lines)

    def read(self, number: int, line: bytes) -> SourceLine:
        """Encodes a line and adds it to the counts. Raises DataError where it cannot be read."""
        try:
            content = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            location = f"line {number}: byte {error.start + 1} is no UTF-8 ({line[error.start]:#04x})"
            raise DataError(f"{location}; convert the text, as with: iconv -f latin1 -t utf8") from None
        try:
            texts = self.texts(content) if content.strip() else ("",)
        except ConfigError as error:
            raise DataError(f"line {number}: {error}") from None
        counts = self.counts
        counts.lines += 1
        if self.is_empty(texts):
            counts.empty += 1
            return SourceLine(len(line))
        symbols = self.encode_each(texts)
        count = self.read_at_once(symbols)
        counts.symbols += sum(map(len, symbols))
        if self.tokenizer.unknown is not None:
            unknown = [int((part == self.tokenizer.unknown).sum()) for part in symbols]
            counts.unknown += sum(unknown)
            if any(absent == len(part) for absent, part in zip(unknown, symbols, strict=True)):
                counts.unreadable.append(number)
        if count > self.longest:
            if self.options.overlong == "refuse":
                counts.refused.append(number)
                return SourceLine(len(line))
            counts.cut.append(number)
        return SourceLine(len(line), self.rows_of(symbols), texts)

    def of_window(self, window: Sequence[SourceLine], report_lines: ReportLines | None) -> Sequence[str]:
        """Returns the outputs of a window of lines; rows of similar length are read together."""
        every = [(number, row) for number, line in enumerate(window) for row in line.rows]
        outputs: list[dict[int, Any]] = [{} for _ in window]
        for indices in batches([len(row) for _, row in every], self.batch_tokens):
            inputs, padding_mask = padded([torch.from_numpy(every[index][1]).long() for index in indices])
            has_padding = not bool(padding_mask.all())
            texts = [window[every[index][0]].texts for index in indices]
            for index, output in zip(indices, self.outputs(inputs, padding_mask, has_padding, texts), strict=True):
                outputs[every[index][0]][index] = output
            read = {every[index][0] for index in indices}
            complete = [window[number].size for number in read if len(outputs[number]) == len(window[number].rows)]
            if report_lines:
                report_lines(len(complete), sum(complete))
        empty_sizes = [line.size for line in window if not line.rows]
        if report_lines and empty_sizes:
            report_lines(len(empty_sizes), sum(empty_sizes))
        return [
            self.written(line.texts, [own[index] for index in sorted(own)]) if own else self.empty
            for line, own in zip(window, outputs, strict=True)
        ]


def usual_batch_tokens() -> int:
    """Returns the symbols of a batch that are read fastest: more fit a GPU, and exceed the caches of a CPU."""
    return 4096 if torch.cuda.is_available() else 1024


def batches(sizes: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yields batches of indices, sorted by size, the longest first, of at most ``tokens`` tokens with padding; indices
    of size 0 are in no batch."""
    batch: list[int] = []
    for index in sorted((index for index, size in enumerate(sizes) if size), key=lambda index: -sizes[index]):
        if batch and (len(batch) + 1) * sizes[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Bool[Tensor, "b t"]]:
    """Returns rows (t, ...) as one tensor (b, t, ...), with zeros behind shorter ones, and which tokens are real."""
    lengths = torch.tensor([len(row) for row in rows])
    joined = pad_sequence([*rows], batch_first=True)
    return joined, torch.arange(joined.size(1)) < lengths[:, None]


def size_of(file: BinaryIO) -> int | None:
    """Returns the size of a file in bytes, or None where it is not a regular file."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
