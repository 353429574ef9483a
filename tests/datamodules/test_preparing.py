"""Whoever waits for data to be written to the cache reads how far that is."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from datamodules.core import preparing
from datamodules.core.index import made_aside
from datamodules.core.preparing import TextCount


def test_a_long_preparation_prints_how_much_was_written_and_a_short_one_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rows"
    with made_aside(folder, "meta.json") as temporary:
        (temporary / "meta.json").write_text("{}")
    assert capsys.readouterr().err == "" and folder.is_dir()
    monkeypatch.setattr(preparing, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(preparing, "EVERY_SECONDS", 0.05)
    for name, progress in (("bytes", None), ("texts", TextCount(2872))):
        with made_aside(other := tmp_path / name, "meta.json", progress) as temporary:
            (temporary / "symbols").write_bytes(bytes(1_500_000))
            if progress is not None:
                progress.done += 1200
            lines: list[str] = []
            deadline = time.monotonic() + 30
            while f"prepares {other}, once: {(progress and '1,200 of 2,872 texts') or '1.5 MB'} so far" not in lines:
                assert time.monotonic() < deadline, lines
                time.sleep(0.02)
                lines += capsys.readouterr().err.splitlines()
            (temporary / "meta.json").write_text("{}")
        *_, last = capsys.readouterr().err.splitlines()
        assert re.fullmatch(rf"prepared {re.escape(str(other))} in \d+ s: 1\.5 MB", last)
