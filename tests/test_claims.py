"""Numbers in README and docs are those of their results files, and say when the code has changed since."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from claims import claim as claims
from claims.benchmarks import benchmark_tables
from claims.catalog import CLAIMS
from claims.claim import Claim, ClaimError, current_commit, values_of
from claims.text import DECISIONS, filled, pages, unmarked_measurements, unmeasured


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_text_says_what_was_measured(page: Path) -> None:
    text, values = page.read_text(encoding="utf-8"), values_of(CLAIMS) | benchmark_tables()
    assert not unmeasured(text, values)
    assert filled(text, values) == text, "put it there by: python -m claims write"


@pytest.mark.parametrize("page", [page for page in pages() if page.name != DECISIONS], ids=lambda page: page.name)
def test_no_measured_number_stands_outside_of_marks(page: Path) -> None:
    assert not list(unmarked_measurements(page.read_text(encoding="utf-8")))


def test_numbers_with_units_are_noticed_outside_of_marks_and_code_alone() -> None:
    text = "It has 38.2 BLEU, <!-- claim a.b -->38.1 BLEU<!-- /claim -->, `4 seconds`, in 5 minutes; arXiv:1706.03762."
    assert list(unmarked_measurements(text)) == ["38.2 BLEU", "5 minutes"]


def test_values_are_put_between_marks_in_their_format() -> None:
    page = "a <!-- claim demo.gain:.2f -->9<!-- /claim --> b"
    assert filled(page, {"demo.gain": 0.125}) == "a <!-- claim demo.gain:.2f -->0.12<!-- /claim --> b"
    assert filled(page, {}) == page and unmeasured(page, {}) == ["demo.gain"]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """A claim that was measured on the code as it is."""
    monkeypatch.setattr(claims, "current_commit", lambda: "0123456789ab")
    claim = replace(CLAIMS["multi30k"], results=tmp_path, measure=lambda folder, commands: {"test_bleu": 1.0})
    claim.measure_and_write(tmp_path / "folder")
    return claim


def test_a_claim_is_older_than_the_code_once_the_code_on_its_path_changes(
    measured: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not measured.is_older_than_code()
    result = json.loads(measured.path.read_text())
    measured.path.write_text(json.dumps(result | {"code": "of another day"}))
    assert measured.is_older_than_code()


def test_a_measurement_that_fails_leaves_the_result_as_it_was(measured: Claim, tmp_path: Path) -> None:
    def fail(folder: Path, commands: tuple[str, ...]) -> dict[str, object]:
        raise ClaimError("the command ended with status 1")

    before = measured.path.read_bytes()
    with pytest.raises(ClaimError, match="status 1"):
        replace(measured, measure=fail).measure_and_write(tmp_path / "folder")
    assert measured.path.read_bytes() == before


def test_nothing_is_measured_on_code_that_no_commit_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        claims, "_git", lambda *words: " M lit_transformers/batch.py\n" if words[0] == "status" else "0"
    )
    with pytest.raises(ClaimError, match=r"lit_transformers/batch\.py differs .* commit first"):
        current_commit()
