"""Subquadratic mixers are those whose FLOPs say so, and the power of a growth is that of the measured values."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.layers import MIXERS
from benchmarks.long_documents import draw, growths, subquadratic


def test_full_attention_is_not_among_the_subquadratic_mixers_and_windows_are() -> None:
    names = set(subquadratic([]))
    assert names >= {"window", "window global", "big bird", "star", "linear", "lsra window", "lstm"}
    assert not names & {"attention", "top-k", "entmax 1.5", "synthesizer", "lsra"}


def test_powers_are_those_of_times_and_peaks_and_of_counted_flops(tmp_path: Path) -> None:
    rows = [
        {"length": length, "milliseconds": {"window": 0.1 * length}, "peak_mib": {"window": 1e-4 * length**2}}
        for length in (4096, 8192, 16384)
    ]
    (growth,) = table = growths(rows, {"window": MIXERS["window"]})
    assert growth.powers == pytest.approx({"milliseconds": 1.0, "peak_mib": 2.0, "flops": 1.0}, abs=0.01)
    draw(table, tmp_path / "growth.png", "4,096 to 16,384")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
