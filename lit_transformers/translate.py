"""Lines of text through a trained encoder-decoder: translations, summaries. As many lines come out as go in."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch

from datamodules import DataError, PairsConfig, tokenizers_of
from datamodules.tokenizers import Symbols
from lit_transformers.config import ConfigError, Plain
from lit_transformers.decoding import BeamConfig, DecodingConfig, GreedyConfig
from lit_transformers.run import load
from lit_transformers.tasks.seq2seq import Seq2Seq

__all__ = ["Counts", "Translator", "Wanted", "size_of"]

NAMED = 10
"""Lines that are named by their number, of those that were cut or refused."""

Overlong = Literal["cut", "refuse"]
Purpose = Literal["translate", "summarize"]
Tell = Callable[[int, int], None]
"""Hears of lines and bytes that have been dealt with since it was last called."""


class Wanted(NamedTuple):
    """How lines are to be written.

    beams, length_penalty: None for what the run was measured with; 1 beam takes the likeliest symbol each time.
    batch_tokens: source symbols of a batch, with padding; window: lines that are read before the first is written, and
    sorted by length. overlong: a line longer than those of training is cut, or comes out empty. source, target: the
    languages that are asked for; purpose: what is, where a checkpoint of the other kind is to be refused.
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
    """What became of the lines: numbers of those that were cut or refused, and unknown ones among their symbols."""

    lines: int = 0
    empty: int = 0
    symbols: int = 0
    unknown: int = 0
    cut: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def told(self, longest: int) -> Iterator[str]:
        """A sentence each, for a person; ``longest``: symbols of a source in training, with the boundary."""
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
    """How many lines, and which."""
    first = ", ".join(str(number) for number in numbers[:NAMED])
    return f"{len(numbers):,} (line {first}{', ...' if len(numbers) > NAMED else ''})"


class Line(NamedTuple):
    """One line as it came in: bytes with its end, and symbols with the boundary; None where it comes out empty."""

    size: int
    symbols: Symbols | None


class Translator:
    """A trained network that is given lines. ``counts`` tell of all lines so far."""

    def __init__(self, checkpoint: Path, wanted: Wanted) -> None:
        """Raises ConfigError or DataError where the checkpoint does not write texts, or not in these languages."""
        task, config, kept = load(checkpoint)
        if not isinstance(task, Seq2Seq):
            raise ConfigError(
                f"only a seq2seq makes a text of another, and this is a run of {config.task.kind}", "task"
            )
        require_purpose(wanted.purpose, config.data.get("source"), kept["languages"])
        require_languages(wanted, kept["languages"])
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.task: Seq2Seq = task.to(device)
        self.task.config = task.config.override({"decoding": decoding(task.config.decoding, wanted)})
        self.wanted, self.counts, self.longest = wanted, Counts(), task.data.source_length
        self.tokenizer, _ = tokenizers_of(kept)

    def told(self) -> Iterator[str]:
        """What became of the lines, a sentence each."""
        return self.counts.told(self.longest)

    def write(self, lines: Iterable[bytes], tell: Tell | None = None) -> Iterator[str]:
        """What is made of every line, in order and without line ends, a window at a time.

        Raises DataError for a line that is not UTF-8, after all before it are written.
        """
        window: list[Line] = []
        try:
            for number, line in enumerate(lines, start=1):
                window.append(self.read(number, line))
                if len(window) == self.wanted.window:
                    ready, window = window, []
                    yield from self.of_window(ready, tell)
        except DataError:
            yield from self.of_window(window, tell)
            raise
        yield from self.of_window(window, tell)

    def read(self, number: int, line: bytes) -> Line:
        """A line, counted."""
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"line {number}: byte {error.start + 1} is no UTF-8 ({line[error.start]:#04x})"
            raise DataError(f"{place}; convert the text, as with: iconv -f latin1 -t utf8") from None
        counts, boundary = self.counts, (self.task.data.source or self.task.data.vocabulary).boundary
        counts.lines += 1
        if not text.strip():
            counts.empty += 1
            return Line(len(line), None)
        symbols = self.tokenizer.encode(text.encode())
        counts.symbols += len(symbols)
        if self.tokenizer.unknown is not None:
            counts.unknown += int((symbols == self.tokenizer.unknown).sum())
        if len(symbols) >= self.longest:
            if self.wanted.overlong == "refuse":
                counts.refused.append(number)
                return Line(len(line), None)
            counts.cut.append(number)
        return Line(len(line), np.append(symbols[: self.longest - 1], boundary))

    def of_window(self, window: Sequence[Line], tell: Tell | None) -> Sequence[str]:
        """What is made of some lines, those of about one length together."""
        made = [""] * len(window)
        for places in batches([0 if line.symbols is None else len(line.symbols) for line in window], self.wanted):
            rows = [torch.from_numpy(window[place].symbols).long() for place in places]
            source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            sizes = torch.tensor([len(row) for row in rows])
            keep, device = torch.arange(source.size(1)) < sizes[:, None], self.task.device
            for place, text in zip(places, self.task.write(source.to(device), keep.to(device)), strict=True):
                made[place] = " ".join(text.splitlines())  # one line, whatever a model may say
            if tell:
                tell(len(places), sum(window[place].size for place in places))
        idle = [line.size for line in window if line.symbols is None]
        if tell and idle:
            tell(len(idle), sum(idle))
        return made


def batches(sizes: Sequence[int], wanted: Wanted) -> Iterator[list[int]]:
    """Places of what is to be decoded together: sorted by size, the longest first; those of size 0 are in none."""
    batch: list[int] = []
    for place in sorted((place for place, size in enumerate(sizes) if size), key=lambda place: -sizes[place]):
        if batch and (len(batch) + 1) * sizes[batch[0]] > wanted.batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def decoding(trained: DecodingConfig, wanted: Wanted) -> DecodingConfig:
    """The decoding that is wanted, otherwise as the run was measured. Raises ConfigError."""
    limits = {name: getattr(trained, name) for name in ("ratio", "extra", "cache")}
    if wanted.beams == 1:
        trained = GreedyConfig(**limits)
    elif wanted.beams is not None:
        searched = trained if isinstance(trained, BeamConfig) else BeamConfig(**limits)
        trained = searched.override({"beams": wanted.beams})
    if wanted.length_penalty is None:
        return trained
    if not isinstance(trained, BeamConfig):
        raise ConfigError(f"{trained.kind} decoding compares no lengths; give more --beams", "--length-penalty")
    return trained.override({"length_penalty": wanted.length_penalty})


def require_purpose(purpose: Purpose | None, source: PairsConfig, languages: Plain) -> None:
    """Raises ConfigError where a translator is to summarize, or what writes summaries to translate.

    Pairs of two languages are translations. Of files whose languages nobody named neither is known: both may be asked.
    """
    if purpose == "summarize" and languages and languages[0] != languages[1]:
        reason = f"this checkpoint translates from {languages[0]} to {languages[1]}; use: translate"
        raise ConfigError(reason, purpose)
    if purpose == "translate" and source.summaries:
        raise ConfigError(f"this checkpoint was trained on summaries, {source.kind}; use: summarize", purpose)


def require_languages(wanted: Wanted, trained: Plain) -> None:
    """Raises ConfigError where another pair of languages is asked for than the network was trained on."""
    for option, asked, known in zip(
        ("--from", "--to"), (wanted.source, wanted.target), trained or (None, None), strict=True
    ):
        if asked is not None and asked != known:
            pair = f"from {trained[0]} to {trained[1]}" if trained else "on texts whose languages its data do not name"
            raise ConfigError(f"{asked} was asked for, and this checkpoint was trained {pair}", option)


def size_of(file: BinaryIO) -> int | None:
    """Bytes of a file; None where they are not known before they come."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
