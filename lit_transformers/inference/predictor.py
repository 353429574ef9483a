"""The base of what predicts something of lines of text: the texts of a line, and its prediction as JSON."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.tasks import Task
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["DIGITS", "LineFormat", "LineTexts", "Predictor", "require_writable"]

LineFormat = Literal["text", "json"]
DIGITS = 6
"""The digits of a probability: the next ones depend on the other lines of a batch."""
NOT_CALIBRATED = "probabilities are those of the network's outputs, and are not calibrated; see: calibrate"
CALIBRATED = "probabilities are calibrated, by a temperature of {:.4g}"


class LineTexts(NamedTuple):
    """What a line holds: as many texts as there are names, with tabs between them, or as a JSON object with these
    fields, or a JSON list."""

    names: tuple[str, ...]
    format: LineFormat

    def of(self, line: str) -> tuple[str, ...]:
        """Returns the texts of a line. Raises ConfigError where it holds something else."""
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
        """What a line is, for messages."""
        if self.format == "json":
            fields = ", ".join(f'"{name}": "..."' for name in self.names)
            return f"{{{fields}}}"
        return "two texts with a tab between them" if len(self.names) == 2 else "a text"


def require_writable(texts: Sequence[str]) -> None:
    """Raises ConfigError for a character that UTF-8 cannot write."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ConfigError("holds a character that UTF-8 cannot write") from None


class Predictor(LineWriter):
    """Predicts something of every line.

    names: of what it predicts, "probabilities" among them if it gives any. temperature: by which the outputs are
    divided before they become probabilities, fitted to examples; None where none was. A row has for each token its
    symbol, 1 in the second text, else 0, and 1 at padding between both, else 0 (t, 3).
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

    @abstractmethod
    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Any]:
        """Yields the predictions of every row, by name. ``padded``: whether any symbol is padding. ``texts``: of the
        line of each row."""

    def texts(self, line: str) -> tuple[str, ...]:
        return self.line_texts.of(line)

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        return self.row_of(*self.rows.row(*symbols))

    def row_of(self, symbols: Symbols, second: int | None, first: int | None = None) -> Symbols:
        """Returns a row, given its symbols without the boundary and the place of the second text in them. first: how
        many of them are of the first text, where padding follows it."""
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
        torch.manual_seed(0)  # as in an evaluation, for mixers that draw random numbers
        with arithmetic(self.training):
            padding_mask, padded = padding_mask & (rows[..., 2] == 0), padded or bool(rows[..., 2].any())
            symbols, segments, _ = rows.to(self.device).unbind(dim=2)
            return [*self.predictions(symbols, segments, padding_mask.to(self.device), padded, texts)]

    def written(self, texts: tuple[str, ...], outputs: Sequence[Any]) -> str:
        return json.dumps(self.prediction(texts, outputs), ensure_ascii=False)

    def prediction(self, texts: tuple[str, ...], outputs: Sequence[Any]) -> Mapping[str, Any]:
        """Hook: returns what is predicted of a line, by name, given that of its rows. By default of its one row."""
        prediction: Mapping[str, Any] = outputs[0]
        return prediction

    def messages(self) -> Iterator[str]:
        yield from super().messages()
        if self.probabilistic:
            yield NOT_CALIBRATED if self.temperature is None else CALIBRATED.format(self.temperature)
