"""Numbers in README and docs are those of their results files, and say when the code has changed since."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from claims import claim as claims
from claims.benchmarks import benchmark_tables, fine_tuning_values
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


def test_the_speed_of_fine_tuning_is_stated_once_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "fine_tuning_cpu.json"
    for value in fine_tuning_values(path).values():
        assert value == (
            "`python -m benchmarks.fine_tuning --json fine_tuning_cpu` compares speed and nats with the Trainer of "
            "transformers."
        )
    rates = {"ours": 75.04, "random": 30.0, "group_by_length": 74.0}
    ratios = {"random": 2.504, "group_by_length": 1.013}
    seeds = [{"ours": 0.40, "random": 0.41, "group_by_length": 0.40}, dict(rates) | dict.fromkeys(rates, 0.42)]
    nats = {"examples": 8000, "seeds": seeds, "mean_differences": {"random": -0.005, "group_by_length": 0.0}}
    results = {"tiny": False, "speed": {"examples_per_second": rates, "ratios": ratios}, "nats": nats}
    path.write_text(json.dumps(results))
    values = fine_tuning_values(path)
    sentence = (
        "Fine-tuning reads 2.50 times the examples a second of the Trainer of transformers at its defaults, and 1.01 "
        "times those of the Trainer with batches of similar length."
    )
    assert values["speed.fine_tuning_sentence"] == sentence
    text, empty, *table = values["speed.fine_tuning"].splitlines()  # type: ignore[union-attr]
    assert text == f"{sentence} Nats are means over 2 seeds, after one epoch of 8,000 sentences." and not empty
    assert table[2:] == [
        "| this suite | 75.0 |  | 0.4100 |  |",
        "| Trainer, random order | 30.0 | 2.50 | 0.4150 | -0.0050 |",
        "| Trainer, similar lengths | 74.0 | 1.01 | 0.4100 | +0.0000 |",
    ]
    path.write_text(json.dumps(results | {"tiny": True}))
    with pytest.raises(ClaimError, match=r"fine_tuning_cpu\.json has few sentences; measure anew: python"):
        fine_tuning_values(path)


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
