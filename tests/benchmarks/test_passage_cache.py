"""The benchmark of encoded passages: ratios of times by a clock of the test, the states that are read, and bytes and
scores of each precision."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations.fine_tuning import READER
from benchmarks import passage_cache
from benchmarks.passage_cache import DEPTH, PRECISIONS, precision_rows, time_rows
from benchmarks.reading import PassageQuestion
from lit_transformers.checked_files import VectorLayout
from lit_transformers.inference.passage_states import PassageStates, PassageStatesWriter
from lit_transformers.inference.passages import PassageLine

DIM = passage_cache.MINILM_NETWORK.dim
TEXTS = ("ada", "bob has", "eve")
"""Each with two tokens for each letter."""


@pytest.fixture
def states(tmp_path: Path) -> dict[int, torch.Tensor]:
    """The states of passages by their numbers, written in float32."""
    vectors = {number: torch.randn(2 * len(text), DIM) for number, text in enumerate(TEXTS)}
    with PassageStatesWriter(tmp_path / "float32", {}, VectorLayout("float32", DIM)) as writer:
        for number, text in enumerate(TEXTS):
            writer.add(PassageLine(number + 1, text), [(range(len(vectors[number]) - 1), vectors[number])])
        writer.finish()
    return vectors


def test_ratios_are_of_whole_rows_to_upper_layers_that_read_states(
    states: dict[int, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer takes a second, and so does the reading of states."""
    clock = [0.0]

    class Network:
        def __init__(self, apart: int) -> None:
            self.apart = apart

        def read_row(self, rows: torch.Tensor, real: torch.Tensor, *_: Any) -> None:
            assert real[:, passage_cache.WIDTH :].sum(dim=1).tolist() == [len(own) for own in states.values()]
            clock[0] += DEPTH

        def read_with(
            self, questions: torch.Tensor, asked: torch.Tensor, vectors: torch.Tensor, real: torch.Tensor
        ) -> None:
            for number, own in states.items():
                assert torch.equal(vectors[number][real[number]], own)
            clock[0] += DEPTH - self.apart + 1

    monkeypatch.setattr(passage_cache, "network_of", Network)
    monkeypatch.setattr(passage_cache.time, "perf_counter", lambda: clock[0])
    rows = time_rows(tmp_path, batch=3, rounds=2)
    assert [row["apart"] for row in rows] == [*range(1, DEPTH + 1)]
    for row in rows:
        assert (row["uncached"], row["cached"]) == (1000 * DEPTH, 1000 * (DEPTH - row["apart"] + 1))
        assert row["ratio"] == row["ratio_to_uncached"] == row["uncached"] / row["cached"]


def test_bytes_are_of_a_passage_and_scores_of_its_answers(
    states: dict[int, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of states is right where they have all their bits, and ``predict`` is always right."""

    class Reader:
        def __init__(self, folder: Path | None = None) -> None:
            self.states = None if folder is None else PassageStates(folder, {})

        def write(self, lines: Iterable[bytes]) -> Iterator[str]:
            for line in map(json.loads, lines):
                number = TEXTS.index(line["context"]) if self.states is None else line["passage"] - 1
                own = states[number] if self.states is None else self.states.states(window_of(self.states, number))
                yield json.dumps({"answer": TEXTS[number] if torch.equal(own, states[number]) else None})

    def window_of(held: PassageStates, number: int) -> Any:
        [window] = held.windows_of(number)
        return window

    questions = [PassageQuestion("who?", text, (text,)) for text in TEXTS]
    monkeypatch.setattr(passage_cache, "questions_of", lambda *_: questions)
    monkeypatch.setattr(passage_cache, "predictor_of", lambda *_: Reader())
    monkeypatch.setattr(passage_cache, "passage_answer_predictor_of", lambda _, folder, *__: Reader(folder))
    (tmp_path / "passages.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    whole, *rows = precision_rows(READER, tmp_path, tmp_path / "passages.txt", tmp_path, 3)
    assert (whole["name"], whole["f1"], whole["equal"], whole["questions"]) == ("predict", 100, 3, 3)
    tokens = sum(map(len, states.values()))
    assert [row["name"] for row in rows] == [*PRECISIONS]
    assert [row["bytes"] for row in rows] == [4 * DIM * tokens / 3, 2 * DIM * tokens / 3, DIM * (tokens + 12) / 3]
    assert [(row["f1"], row["equal"], row["tokens"]) for row in rows] == [
        (100, 3, tokens),
        (0, 0, tokens),
        (0, 0, tokens),
    ]
