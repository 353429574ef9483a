"""Text that repeats its own symbols at known distances, and the least possible losses on it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from generated_documents import check_every_field, documents

from datamodules import LagsConfig, LanguageDataConfig
from datamodules.core.documents import SPLITS
from lit_transformers.config import ConfigError
from lit_transformers.runs.config import RunConfig, references

SMALL = LagsConfig(symbols=5, lags=(2, 6), shares=(0.4, 0.4), length=300, documents=60, validation=0.2, test=0.2)


def conditional_entropy(config: LagsConfig, lag_count: int, count: int) -> float:
    """Returns the entropy of a symbol given those at the first lags, in bits, from the frequencies in documents."""
    joint: Counter[tuple[int, ...]] = Counter()
    reach = config.lags[-1]
    for number in range(count):
        text = config.document(number)
        rows = zip(text[reach:], *(text[reach - lag : len(text) - lag] for lag in config.lags[:lag_count]), strict=True)
        joint.update(rows)
    context: Counter[tuple[int, ...]] = Counter()
    for (_, *past), frequency in joint.items():
        context[tuple(past)] += frequency
    total = sum(joint.values())
    return -sum(n / total * math.log2(n / context[tuple(past)]) for (_, *past), n in joint.items())


def test_the_least_losses_are_those_of_the_frequencies_in_long_documents() -> None:
    config = SMALL.override({"length": 200_000})
    losses = config.context_losses
    assert losses[0] == pytest.approx(math.log2(5)) and losses == sorted(losses, reverse=True)
    for lag_count, loss in enumerate(losses):
        assert loss == pytest.approx(conditional_entropy(config, lag_count, 3), abs=0.01), lag_count


def test_the_last_of_the_least_losses_is_that_of_who_knows_the_source() -> None:
    config = SMALL.override({"length": 200_000})
    text = np.frombuffer(config.document(0), dtype=np.uint8)
    probabilities = np.full(len(text) - 6, 0.2 / 5)
    for lag in config.lags:
        probabilities += 0.4 * (text[6:] == text[6 - lag : len(text) - lag])
    assert config.context_losses[-1] == pytest.approx(-np.log2(probabilities).mean(), abs=0.01)


def test_one_lag_is_worth_what_a_noisy_copy_is() -> None:
    config = LagsConfig(symbols=16, lags=(7,), shares=(0.5,))
    right, wrong = 0.5 + 0.5 / 16, 0.5 / 16
    assert config.context_losses[1] == pytest.approx(-right * math.log2(right) - 15 * wrong * math.log2(wrong))


@pytest.mark.slow
def test_the_start_of_a_document_sees_less_and_is_as_stationary_as_the_rest() -> None:
    config = SMALL.override({"length": 8})
    without, first, both = config.context_losses
    known = config.known_losses()
    assert list(known) == ["no context", "2 symbols back", "6 symbols back"]
    expected = [without, (2 * without + 6 * first) / 8, (2 * without + 4 * first + 2 * both) / 8]
    assert list(known.values()) == pytest.approx(expected)
    texts = [config.document(number) for number in range(4000)]
    assert np.mean([text[3] == text[1] for text in texts]) == pytest.approx(
        np.mean([text[7] == text[5] for text in texts]), abs=0.04
    )


def test_every_document_is_in_one_split_and_the_same_again() -> None:
    texts = documents(SMALL)
    assert len(texts) == 60 and len(set(texts.values())) == 60 and {len(text) for text in texts.values()} == {300}
    assert set(Counter(name.split()[0] for name in texts)) == set(SPLITS)
    assert texts == documents(SMALL)


def test_every_field_changes_documents_splits_and_the_fingerprint() -> None:
    changed_values = {
        "piece": 4096, "symbols": 6, "lags": (2, 8), "shares": (0.4, 0.3), "length": 301, "documents": 61, "seed": 1,
        "validation": 0.3, "test": 0.3,
    }  # fmt: skip
    check_every_field(SMALL, changed_values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lags": (6, 2)}, r"lags rise, and there is at least one; got \[6, 2\]"),
        ({"lags": (), "shares": ()}, "lags rise"),
        ({"shares": (0.4,)}, "2 lags need as many shares, not 1"),
        ({"shares": (0.5, 0.5)}, "the shares sum to 1, which leaves no free symbols"),
        ({"lags": (100, 300)}, "a lag of 300 does not fit into documents of 300 symbols"),
        ({"lags": (1, 65)}, "the largest lag is at most 64 times the greatest common divisor"),
        ({"length": 300_000}, "300000 symbols are no document of at most 262144 bytes; set piece"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL.override(changes)


def test_a_run_knows_the_least_losses_of_its_metric_and_of_no_other() -> None:
    config = RunConfig(data=LanguageDataConfig(source=SMALL))
    known = {reference.name: reference.value for reference in references(config, "val/bpb")}
    assert known == SMALL.known_losses()
    assert references(config, "val/nats") == () == references(RunConfig(), "val/bpb")
