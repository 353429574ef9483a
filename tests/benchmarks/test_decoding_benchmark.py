"""The benchmark of decoding: every way writes the same text as the first one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.decoding import main


@pytest.mark.slow
def test_every_way_writes_the_same_symbols(tmp_path: Path) -> None:
    main(seconds=0.5, rounds=1, quick=True, json_name=str(tmp_path / "decoding.json"))
    tables = json.loads((tmp_path / "decoding.json").read_text())["tables"]
    assert [len(rows) for rows in tables.values()] == [5, 2, 3, 4]
    for row in tables.pop("A symbol after a prefix"):
        assert row["difference"] == pytest.approx(0, abs=1e-4) and row["attention_ms"] > 0 < row["linear_ms"]
    for row in (row for rows in tables.values() for row in rows if row["way"] != "the draft alone"):
        assert row["equal_symbols"] == 100 and row["ms_a_symbol"] > 0, row
