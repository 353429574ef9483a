"""A run on one's own data is written by ``init``, as its user means it, and trains."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules import DataError
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.template.fine_tuning import FOUND, LEAST_UPDATES, Columns, Purpose, write_fine_tuning
from lit_transformers.template.training_time import Pace

SHORT = {"training.steps": 2, "training.schedule.warmup": 1, "training.validate_every": None, "data.batch_size": 8}


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def reviews(count: int = 60) -> list[dict[str, Any]]:
    words = ("good", "dull")
    return [{"id": n, "Review": f"a {words[n % 2]} film {n}", "Sentiment": words[n % 2]} for n in range(count)]


def pairs(count: int = 60) -> list[dict[str, Any]]:
    return [{"sentence1": f"the cat {n}", "sentence2": f"a cat {n % 7}", "score": n % 5 + 0.5} for n in range(count)]


def questions(count: int = 40) -> list[dict[str, Any]]:
    passages = [f"Ada {n} lives in Town{n} with a cat." for n in range(count)]
    return [
        {"question": f"Where does Ada {n} live?", "context": text, "answers": [f"Town{n}"]}
        for n, text in enumerate(passages)
    ]


def at(seconds: float) -> Callable[..., Pace]:
    """A machine on which a token takes these seconds, and an optimizer step half a second."""
    return lambda model, task, symbols, length: Pace(seconds, 0.5)


def written(purpose: Purpose, data: str, folder: Path, token: float = 0.0, **columns: str) -> RunConfig:
    write_fine_tuning(purpose, data, folder, None, Columns(**columns), at(token))
    return RunConfig.from_yaml(folder / "run.yaml")


def test_a_table_of_texts_is_classified_by_its_usual_columns_whatever_their_case(tmp_path: Path) -> None:
    config = written("classify", table(tmp_path / "reviews.csv", reviews()), tmp_path / "run")
    source: Any = config.data.get("source")
    assert (source.text, source.label, source.second) == ("Review", "Sentiment", None)
    assert source.labels == ("dull", "good") and config.task.kind == "classification"
    record = fit(config.override({**SHORT, "training.device": "cpu"}), tmp_path / "trained")
    assert record["outcome"] == "finished", record["reason"]
    assert load(tmp_path / "trained" / "checkpoint.ckpt")[0].config.kind == "classification"


def test_a_table_of_pairs_is_scored_and_a_column_may_be_named(tmp_path: Path) -> None:
    data = table(tmp_path / "pairs.jsonl", pairs())
    config = written("score", data, tmp_path / "run")
    source: Any = config.data.get("source")
    assert (source.text, source.second, source.label, source.labels) == ("sentence1", "sentence2", "score", "numbers")
    alone: Any = written("score", data, tmp_path / "other", text="sentence2").data.get("source")
    assert (alone.text, alone.second) == ("sentence2", None)


def test_words_and_questions_have_their_objectives(tmp_path: Path) -> None:
    (tmp_path / "words.conll").write_text("".join(f"Ada B-name\nsleeps O\n{n} O\n\n" for n in range(40)))
    assert written("tag", str(tmp_path / "words.conll"), tmp_path / "tags").task.kind == "tagging"
    config = written("answer", table(tmp_path / "questions.jsonl", questions()), tmp_path / "answers")
    assert config.task.kind == "question_answering" and config.data.get("source.stride") < config.data.length


def test_questions_and_their_passages_are_retrieved(tmp_path: Path) -> None:
    names = [f"Ada {n:06b}" for n in range(40)]
    rows = [{"query": f"{verb} {name}?", "context": f"{name} lives."} for name in names for verb in ("Is", "Was")]
    config = written("retrieve", table(tmp_path / "questions.jsonl", rows), tmp_path / "run")
    source: Any = config.data.get("source")
    assert (source.source, source.target, config.task.kind) == ("query", "context", "retrieval")
    read: Any = config.data.build()
    splits = [{*read.passages(split)} for split in ("train", "validation", "test")]
    assert len({*splits[0], *splits[1], *splits[2]}) == sum(map(len, splits)) == 40
    record = fit(config.override({**SHORT, "training.device": "cpu"}), tmp_path / "trained")
    assert record["outcome"] == "finished" and {"val/hit_1", "val/mrr"} <= record["metrics"].keys()
    squad = {"context": "Ada lives.", "qas": [{"question": "Is Ada?", "id": "1", "answers": []}] * 2}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [squad]}]}))
    assert written("retrieve", str(tmp_path / "squad.json"), tmp_path / "squad").data.get("source").kind == "squad"


def test_a_first_run_takes_minutes_and_its_lines_say_how_to_train_longer(tmp_path: Path) -> None:
    """Texts of 9 tokens on three machines. Three passes over 800 of them take 75 updates of 32, and the least number is
    200. An update of 288 tokens takes 0.5 s, 3.7 s and 317 s."""
    data = table(tmp_path / "reviews.csv", reviews(1000))
    steps = {}
    for token in (0.0, 0.01, 1.0):
        folder = tmp_path / str(token)
        lines = write_fine_tuning("classify", data, folder, None, FOUND, at(token))
        config = RunConfig.from_yaml(folder / "run.yaml")
        steps[token] = config.training.steps
        examples, longer = lines[-2:]
        assert all(f"# {line}\n" in (folder / "run.yaml").read_text() for line in (examples, longer))
        assert f"{steps[token]} updates of 32, " in examples
        assert f"--set training.steps={400 if token == 0.0 else 200} --to {folder / 'longer'}" in longer
    assert steps[0.0] == 200 and 70 < steps[0.01] < 90 and steps[1.0] == LEAST_UPDATES
    first = write_fine_tuning("classify", data, tmp_path / "again", None, FOUND, at(0.01))[-2]
    assert "updates of 32, " in first and first.endswith(": about 5 minutes on this machine if it is idle")


def test_labels_are_those_of_all_records_and_empty_ones_are_omitted(tmp_path: Path) -> None:
    """Records that are sorted by their label, more than are measured, with some that have none."""
    first = {"id": 0, "Review": "!?", "Sentiment": "good"}
    rows = [first, *reviews(5000)[::2], *reviews(10)[1::2], {"id": 0, "Review": "a film", "Sentiment": ""}]
    lines = write_fine_tuning("classify", table(tmp_path / "reviews.csv", rows), tmp_path / "run", None, FOUND, at(0.0))
    assert "classes: dull (5), good (2,501)" in lines
    assert "1 record without a text or a label is omitted" in lines
    assert "1 of 2,000 texts have no letter, such as '!?'" in lines


def test_questions_of_a_table_are_read_in_rows_that_hold_them(tmp_path: Path) -> None:
    """A window leaves room for the longest question, and shorter passages make shorter rows."""
    rows = [
        {"question": row["question"], "context": row["context"], "answer": row["answers"][0]} for row in questions()
    ]
    short = written("answer", table(tmp_path / "questions.csv", rows), tmp_path / "short")
    assert short.data.length < 64 and short.data.batch_size == 16
    long = [{**row, "question": row["question"] * 40, "context": row["context"] + " And so on." * 200} for row in rows]
    config = written("answer", table(tmp_path / "long.csv", long), tmp_path / "long")
    assert config.data.length == 384 and config.data.build().examples.count("train") > 40


@pytest.mark.parametrize(
    ("purpose", "rows", "columns", "message"),
    [
        ("classify", [{"a": "x", "label": "y"}], {}, r"which column is the text\? Name one by --text: a, label"),
        ("classify", reviews(), {"label": "Rewiew"}, r"no column 'Rewiew'.*Review.*\(set --label\)"),
        (
            "classify",
            reviews(),
            {"text": "id"},
            "no text in the column .id. has a letter.*; name another column",
        ),
        ("classify", reviews(8)[::2], {}, "has 1 different labels in 4 records; name another column by --label"),
        ("score", reviews(), {}, "holds a label that is not a number .*--classify"),
        ("retrieve", reviews(), {}, "which column is the question.*--text: id, Review, Sentiment"),
        ("retrieve", reviews(), {"text": "Review"}, "which column is the passage.*--second"),
        ("retrieve", reviews(), {"text": "Review", "second": "Sentiment", "label": "id"}, "drop --label"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_the_option_that_mends_it(
    purpose: Purpose, rows: list[dict[str, Any]], columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        written(purpose, table(tmp_path / "table.csv", rows), tmp_path / "run", **columns)
    assert not (tmp_path / "run").exists()


def test_nothing_is_overwritten_and_one_purpose_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = table(tmp_path / "reviews.csv", reviews())
    written("classify", data, tmp_path / "run")
    with pytest.raises(ConfigError, match="is there already; choose another folder"):
        written("classify", data, tmp_path / "run")
    assert main(["init", str(tmp_path / "new"), "--classify", data, "--score", data]) == 2
    assert "choose one of --classify, --score" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "new"), "--classify", data]) == 0
    printed = capsys.readouterr().out
    assert 'columns: text "Review", label "Sentiment"' in printed
    assert printed.splitlines()[-1].endswith(f"fit {tmp_path / 'new' / 'run.yaml'}")
