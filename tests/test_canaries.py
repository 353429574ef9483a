"""A change that stops a kind of task from learning fails here: short runs score as they have scored before."""

from __future__ import annotations

from pathlib import Path

import pytest

from claims.canaries import CANARIES, score
from claims.catalog import CLAIMS


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_a_short_run_scores_what_it_has_scored_before(name: str, tmp_path: Path) -> None:
    result = CLAIMS["canaries"].read()
    assert result is not None, "measure them: python -m claims measure canaries"
    expected = result["values"]["intervals"][name]
    value, data = score(CANARIES[name], 0, tmp_path / "run")
    if data != expected["data"]:
        pytest.skip(f"{data} is another corpus than {expected['data']}, which was measured")
    assert expected["low"] <= value <= expected["high"]
