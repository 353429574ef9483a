"""The benchmark of the path from a question to its answer: both kinds of readers, errors by stage, and intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from scipy import stats

from ablations.fine_tuning import READER
from benchmarks.question_to_answer import (
    ERRORS,
    WAYS,
    HeldOut,
    Result,
    difference,
    evenly,
    held_out_of,
    main,
    reader_config,
    retriever_config,
    row_reader,
    state_reader,
)
from benchmarks.reading import PassageQuestion
from lit_transformers.answer_scores import AnswerScores
from lit_transformers.inference.encode_passages import encode_passages
from lit_transformers.runs import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of the benchmark and its numbers."""
    folder = tmp_path_factory.mktemp("path")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(folder / "cache"))
        main(tiny=True, steps=1, exhaustive=3, folder=folder, json_name=str(folder / "numbers.json"))
    return folder


def test_errors_are_counted_at_the_stage_that_fails(folder: Path) -> None:
    numbers = json.loads((folder / "numbers.json").read_text())
    [found] = numbers["retriever"]
    assert found["passages"] == 8
    assert found["hit@1"] < found["hit@5"] <= 100
    answers = {(row["k"], row["passages"]): row for row in numbers["answers"]}
    assert [*answers] == [(apart, way) for apart in (0, 1) for way in WAYS]
    for (_, way), row in answers.items():
        assert row["questions"] == (3 if way == "all" else 4)
        assert sum(row[error] for error in ERRORS) == pytest.approx(100 - row["exact_match"])
    for apart in (0, 1):
        gold, first, _, every = (answers[apart, way] for way in WAYS)
        assert gold["not_found"] == gold["other_passage"] == every["not_found"] == first["other_passage"] == 0
        assert first["not_found"] == 100 - found["hit@1"]
    assert [row["questions"] for row in numbers["differences"]] == [4, 4, 4, 3] + [4, 4, 3] * 2
    assert {row["stage"] for row in numbers["times"]} > {"find passages", "encode a passage, once"}


def test_rows_and_states_of_passages_give_one_answer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(folder / "cache"))
    checkpoint = folder / "reader 1" / "checkpoint.ckpt"
    held_out = held_out_of(load(checkpoint)[1], 4, 0)
    (tmp_path / "passages.txt").write_text("".join(f"{text}\n" for text in held_out.passages))
    encode_passages(checkpoint, tmp_path / "passages.txt", tmp_path / "states")
    readers = row_reader(checkpoint, held_out.passages), state_reader(checkpoint, tmp_path / "states")
    questions = [question.text for question in held_out.questions]
    choices: Sequence[Any] = ([[2], [7], [0], [3]], [[5, 1, 6], [7, 2], [0, 4], [3]], [None] * 4)
    for candidates in choices:
        by_rows, by_states = (read(questions, candidates) for read in readers)
        assert by_rows == by_states
        assert all(own is None or answer.passage in own for answer, own in zip(by_rows, candidates, strict=True))


def result(scores: Sequence[float], way: str = "gold") -> Result:
    both = [AnswerScores(0.0, score) for score in scores]
    return Result(0, way, range(len(scores)), both, ["wrong_span"] * len(scores), 1.0)


def test_intervals_of_differences_take_passages_as_independent() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.uniform(0, 100, (2, 12))

    def of(gold: Sequence[int]) -> dict[str, Any]:
        held_out = HeldOut([PassageQuestion("", "", ())] * 12, gold, [])
        return difference(held_out, result(first), result(second, "all"))

    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    single = of(range(12))
    assert (single["low"], single["high"]) == pytest.approx((expected.low, expected.high))
    assert (single["first"], single["second"], single["questions"]) == ("gold, k = 0", "all, k = 0", 12)
    gold = [0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
    clustered, middle = of(gold), float((first - second).mean())
    residuals = [sum((first - second - middle)[np.array(gold) == passage]) for passage in range(4)]
    half = stats.t.ppf(0.975, 3) * np.sqrt(4 / 3 * np.sum(np.square(residuals))) / 12
    assert (clustered["f1"], clustered["low"], clustered["high"]) == pytest.approx(
        (middle, middle - half, middle + half)
    )


def test_readers_and_retriever_start_from_the_released_network(tmp_path: Path) -> None:
    configs = [reader_config(5, 150, 0, None), retriever_config(tmp_path, 0, False)]
    assert [config.start.to_dict()["network"] for config in configs] == [READER.start.to_dict()["network"]] * 2
    assert READER.start.network is not None


def test_questions_are_chosen_at_equal_distances() -> None:
    assert evenly(10, 4) == [0, 3, 6, 9]
    assert evenly(3, 8) == [0, 1, 2]


def test_readers_that_cannot_be_compared_are_refused(folder: Path) -> None:
    checkpoint = folder / "reader 1" / "checkpoint.ckpt"
    with pytest.raises(typer.BadParameter, match="two runs have the same number of layers apart"):
        main(tiny=True, reader=[checkpoint, checkpoint])
