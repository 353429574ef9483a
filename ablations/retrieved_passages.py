"""Ranks the passages of xquad for each of its English questions by the released MiniLM.

    python -m ablations.retrieved_passages FILE

Questions and passages pass two towers that share their weights (MiniLM below LIT_WEIGHTS, arXiv:1910.11856 below
LIT_DATA). ``data.source.retrieved`` names the file, relative to LIT_DATA.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ablations.fine_tuning import READER, RETRIEVAL
from datamodules.labelled.questions import QuestionsConfig
from datamodules.labelled.retrieved_passages import RetrievedPassages
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.passages import PassageLine, passage_finder_of
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit

__all__ = ["ranked"]


def ranked(retrieval: RunConfig, source: QuestionsConfig) -> RetrievedPassages:
    """Returns all passages of a source of questions, ranked for each of its questions by a run of retrieval."""
    questions, passages = list[str](), dict[str, None]()
    examples = source.build()
    for split in ("train", "validation"):
        for number in {*examples.documents(split).tolist()}:
            paragraph, question = examples.question(split, number)
            questions.append(question.text)
            passages[paragraph.passage] = None
    lines = [PassageLine(number, text) for number, text in enumerate(passages, 1)]
    with tempfile.TemporaryDirectory() as folder:
        fit(retrieval, Path(folder))
        finder = passage_finder_of(Path(folder) / CHECKPOINT, lines, LineOptions(), top=len(lines))
        nearest = finder.nearest_of(questions)
    numbers = {text: [number for number, _ in own] for text, own in zip(questions, nearest, strict=True)}
    return RetrievedPassages([*passages], numbers)


def main(file: Annotated[Path, typer.Argument(help="Write the ranked passages to this file.")]) -> None:
    """Rank the passages of xquad for each of its English questions."""
    source = READER.data.source  # type: ignore[attr-defined]
    file.parent.mkdir(parents=True, exist_ok=True)
    passages = ranked(RETRIEVAL.override({"start": READER.start}), source)
    passages.write(file)
    print(f"{file}: {len(passages.passages)} passages, ranked for {len(passages.questions)} questions")


if __name__ == "__main__":
    typer.run(main)
