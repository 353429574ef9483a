"""The benchmark of streams reads the corpora that it writes, compares resumes exactly, and prints tables that fit a
terminal."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.stream import QUESTIONS, Amounts, Key, measured, resumed, tables, usual, write_corpora
from benchmarks.stream_readers import LENGTH, READERS, ROWS, SUFFIXES, Case, Suite


def test_tables_fit_80_columns() -> None:
    number = {
        "tokens": 57_123_456.0,
        "clock": 98_765_432.1,
        "cold": [123.456, 99.9],
        "warm": [12.3, 9.9],
        "memory": 12_345.6,
    }
    row = {name: number | {"resume": 123.45, "differ": [640, 640]} for name in READERS}
    key = max(map(str, usual(["bytes", "bpe"], list(SUFFIXES), [0, 2, 4], [1, 2])), key=len)
    printed = list(tables({key: row}, list(READERS)))
    assert [table.title for table in printed] == list(QUESTIONS.values())
    console = Console(width=200, file=(file := io.StringIO()))
    console.print(*printed)
    assert max(map(len, file.getvalue().splitlines())) == 80
    assert "57,123" in file.getvalue() and "640 of 640" in file.getvalue() and "1.0" in file.getvalue()


def test_every_format_is_measured_once_and_the_first_with_each_number_of_workers_and_ranks() -> None:
    keys = usual(["bytes"], ["parquet", "text"], [0, 2], [1, 2])
    assert keys == [
        Key("bytes", *rest) for rest in (("parquet", 0, 1), ("text", 0, 1), ("parquet", 2, 1), ("parquet", 0, 2))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["suite", "datasets"])
def test_a_reader_is_measured_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    tokenizer = write_corpora(tmp_path, 2_000_000, ["jsonl.gz"])
    (tmp_path / "cache").mkdir()
    case = Case("jsonl.gz", tmp_path / "jsonl.gz", tokenizer, tmp_path / "cache", workers=0)
    [(rows, count)] = islice(READERS[name](case).rows(), 1)
    assert rows.shape == (ROWS, LENGTH) and count == ROWS * LENGTH
    amounts = Amounts(seconds=0.2, repeats=2, compared=3)
    first, again = measured(READERS[name], case, amounts), resumed(READERS[name], case, amounts)
    assert len(first["rates"]) == len(first["clock"]) == 2 and again["failed"] is None
    assert min(first["rates"]) > 0 and min(first["clock"]) > 0
    if READERS[name] is Suite:
        assert again["differ"] == [0, 3 * ROWS]
