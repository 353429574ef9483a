"""Questions and passages for benchmarks of readers, and their tables."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from datamodules.core.documents import Split
from lit_transformers.inference.lines import LineWriter
from lit_transformers.runs import RunConfig

__all__ = ["PassageQuestion", "one_line", "questions_of", "shown", "wikitext_lines", "written"]


class PassageQuestion(NamedTuple):
    """A question with its passage on one line and its right answers."""

    text: str
    passage: str
    answers: tuple[str, ...]


def one_line(text: str) -> str:
    return " ".join(text.split())


def wikitext_lines() -> Iterator[str]:
    """Yields the lines of WikiText-2 (below LIT_DATA) with more than 400 characters."""
    with lzma.open(Path(os.environ["LIT_DATA"], "wikitext-2", "wiki.train.tokens.xz"), "rt", encoding="utf-8") as file:
        yield from (one_line(line) for line in file if len(line) > 400)


def questions_of(config: RunConfig, split: Split) -> list[PassageQuestion]:
    """Returns the questions of a split, given a run on ``QuestionsConfig``."""
    examples = config.build_data().examples  # type: ignore[attr-defined]
    count = len(set(examples.documents(split).tolist()))
    pairs = (examples.question(split, number) for number in range(count))
    return [
        PassageQuestion(question.text, one_line(paragraph.passage), tuple(answer.text for answer in question.answers))
        for paragraph, question in pairs
    ]


def written(predictor: LineWriter, lines: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Returns the objects that a predictor writes for lines of JSON."""
    return [json.loads(line) for line in predictor.write(f"{json.dumps(line)}\n".encode() for line in lines)]


def shown(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table with a column for each name in any row."""
    table = Table(title=title)
    names = [*dict.fromkeys(chain.from_iterable(rows))]
    for name in names:
        table.add_column(name.replace("_", "\n"), justify="right")
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else f"{cell}" for cell in cells))
    return table
