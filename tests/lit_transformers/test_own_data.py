"""A run on one's own data is written by ``init``, as its user means it, and trains."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from datamodules import DataError
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.template.fine_tuning import Columns, Purpose, write_fine_tuning

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


def written(purpose: Purpose, data: str, folder: Path, **columns: str) -> RunConfig:
    write_fine_tuning(purpose, data, folder, columns=Columns(**columns))
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


@pytest.mark.parametrize(
    ("purpose", "rows", "columns", "message"),
    [
        ("classify", [{"a": "x", "label": "y"}], {}, r"which column is the text\? Name one by --text: a, label"),
        ("classify", reviews(), {"label": "Rewiew"}, r"no column 'Rewiew'.*Review.*\(set --label\)"),
        ("classify", reviews(8)[::2], {}, "has 1 different labels in 4 records; name another column by --label"),
        ("score", reviews(), {}, "holds a label that is not a number .*--classify"),
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
