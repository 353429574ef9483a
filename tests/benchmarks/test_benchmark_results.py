"""Where the numbers of a benchmark are stored, and how they describe the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import hardware


def test_numbers_go_to_the_results_by_name_and_elsewhere_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "RESULTS", tmp_path / "results")
    elsewhere = tmp_path / "out" / "speed.json"
    assert hardware.save("speed", {"seconds": 1}) == tmp_path / "results" / "speed.json"
    assert hardware.save(str(elsewhere), {"seconds": 2}) == elsewhere
    assert json.loads((tmp_path / "results" / "speed.json").read_text()) == {"seconds": 1}
    assert json.loads(elsewhere.read_text()) == {"seconds": 2}


def test_what_is_not_installed_has_no_version_and_stops_nothing() -> None:
    versions = hardware.describe(("torch", "no-such-package"))["versions"]
    assert versions["torch"] and versions["no-such-package"] is None
