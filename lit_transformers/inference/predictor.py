"""The base of predictors of lines of text: reads the texts of a line, and writes its prediction as JSON."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from lit_transformers.config import ConfigError, Plain
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.inference.precision import computed_in, prepare
from lit_transformers.runs import RunConfig, load
from lit_transformers.tasks import Task

__all__ = ["DIGITS", "LineFormat", "LineRows", "LineTexts", "Predictor", "load_for_lines", "require_writable", "seed"]

LineFormat = Literal["text", "json"]
DIGITS = 6
"""The digits of a probability; further digits would depend on the other lines of the batch."""
NOT_CALIBRATED = "probabilities are those of the network's outputs, and are not calibrated; see: calibrate"
CALIBRATED = "probabilities are calibrated, by a temperature of {:.4g}"


class LineTexts(NamedTuple):
    """The texts of a line, one for each name: with tabs between them, as a JSON object with these fields, or as a JSON
    list."""

    names: tuple[str, ...]
    format: LineFormat

    def of(self, line: str) -> tuple[str, ...]:
        """Returns the texts of a line. Raises ConfigError if the line has another form."""
        plain: Any = [line] if len(self.names) == 1 else line.split("\t")
        if self.format == "json":
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"is no JSON; give {self.example}, or --lines text") from None
        if isinstance(plain, Mapping):
            if missing := [name for name in self.names if name not in plain]:
                raise ConfigError(f"has no field {missing[0]!r}; give {self.example}")
            plain = [plain[name] for name in self.names]
        texts = [plain] if isinstance(plain, str) else plain
        if not isinstance(texts, list) or len(texts) != len(self.names) or not all(isinstance(t, str) for t in texts):
            raise ConfigError(f"has another form; give {self.example}")
        require_writable(texts)
        return tuple(texts)

    @property
    def example(self) -> str:
        """An example of a line, for messages."""
        if self.format == "json":
            fields = ", ".join(f'"{name}": "..."' for name in self.names)
            return f"{{{fields}}}"
        return "two texts with a tab between them" if len(self.names) == 2 else "a text"


class LineRows(NamedTuple):
    """The rows of lines in the form that networks read.

    rows (b, t): symbols. segments (b, t): 1 in the second text, else 0. padding_mask (b, t): False at padding. padded:
    whether any symbol is padding. texts: for each row, the texts of its line.
    """

    rows: Int[Tensor, "b t"]
    segments: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    padded: bool
    texts: Sequence[tuple[str, ...]]


def load_for_lines(
    checkpoint: Path, changes: Mapping[str, Plain] | None = None
) -> tuple[Task, RunConfig, dict[str, Plain]]:
    """Loads a run as ``load`` does. On a CPU the network reads rows without their padding, if it can: lines of one
    batch differ in length, and their padding costs as much as symbols. Outputs are equal but for rounding."""
    return load(checkpoint, changes, wished={} if torch.cuda.is_available() else {"model.unpadded": True})


def seed(device: torch.device) -> None:
    """Starts random numbers as an evaluation does, for mixers that draw them. ``torch.manual_seed`` writes down the
    stack for each kind of device that is absent, which takes as long as some layers read a text."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.manual_seed(0)


def require_writable(texts: Sequence[str]) -> None:
    """Raises ConfigError for a character that UTF-8 cannot write."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ConfigError("holds a character that UTF-8 cannot write") from None


class Predictor(LineWriter):
    """Base of predictors, which write one line of JSON for each line of input.

    names: the fields of a prediction, such as "probabilities". temperature: divides the outputs before the softmax;
    None if the checkpoint was not calibrated. A row (t, 3) has the symbol of each token; 1 in the second text, else 0;
    and 1 at padding between both texts, else 0.
    """

    def __init__(
        self,
        task: Task,
        texts: LineTexts,
        rows: TextRows,
        options: LineOptions,
        names: tuple[str, ...],
        temperature: float | None = None,
    ) -> None:
        super().__init__(options, rows.tokenizer, rows.longest)
        self.empty, self.temperature = json.dumps(dict.fromkeys(names)), temperature
        self.probabilistic = "probabilities" in names
        self.line_texts, self.rows, self.boundary = texts, rows, task.data.vocabulary.boundary
        self.training = task.training_config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task.to(self.device)
        prepare(task, options.precision, self.device)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Returns a context in which passes are computed in the precision of the options."""
        return computed_in(self.options.precision, self.training, self.device)

    @abstractmethod
    def predictions(self, read: LineRows) -> Iterator[Any]:
        """Yields the prediction of each row."""

    def texts(self, line: str) -> tuple[str, ...]:
        return self.line_texts.of(line)

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        return self.row_of(*self.rows.row(*symbols))

    def row_of(self, symbols: Symbols, second: int | None, first: int | None = None) -> Symbols:
        """Returns a row (t, 3), given its symbols without the boundary, and the place where the second text begins.
        first: the number of symbols of the first text, if padding follows it."""
        row, places = np.append([self.boundary], symbols), np.arange(1 + len(symbols))
        is_second = places > (len(row) if second is None else second)
        is_padding = ~is_second & (places > (len(row) if first is None else first))
        return np.stack([row, is_second, is_padding], axis=1)

    @torch.no_grad()
    def outputs(
        self,
        rows: Int[Tensor, "b t 3"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Sequence[Any]:
        seed(self.device)
        with self.arithmetic():
            padding_mask, padded = padding_mask & (rows[..., 2] == 0), padded or bool(rows[..., 2].any())
            symbols, segments, _ = rows.to(self.device).unbind(dim=2)
            return [*self.predictions(LineRows(symbols, segments, padding_mask.to(self.device), padded, texts))]

    def written(self, texts: tuple[str, ...], outputs: Sequence[Any]) -> str:
        return json.dumps(self.prediction(texts, outputs), ensure_ascii=False)

    def prediction(self, texts: tuple[str, ...], outputs: Sequence[Any]) -> Mapping[str, Any]:
        """Hook: returns the prediction of a line, given the predictions of its rows. By default the one of its only
        row."""
        prediction: Mapping[str, Any] = outputs[0]
        return prediction

    def messages(self) -> Iterator[str]:
        yield from super().messages()
        if self.probabilistic:
            yield NOT_CALIBRATED if self.temperature is None else CALIBRATED.format(self.temperature)
