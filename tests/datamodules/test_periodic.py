"""Images that repeat themselves, as documents."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from generated_documents import check_every_field, documents

from datamodules import LanguageData, LanguageDataConfig, PeriodicConfig
from datamodules.core.documents import SPLITS
from lit_transformers.config import ConfigError

SMALL = PeriodicConfig(width=12, height=10, period=2, images=60, validation=0.2, test=0.2)


def repeated_share(image: bytes, config: PeriodicConfig, lag: int) -> float:
    """Returns the share of pixels that equal the one ``lag`` pixels before."""
    pairs = list(zip(image[lag:], image, strict=False))
    return sum(a == b for a, b in pairs) / len(pairs)


def test_without_noise_an_image_repeats_after_its_period_and_not_before() -> None:
    config = SMALL.override({"noise": 0.0})
    for number in range(20):
        image = config.image(number)
        assert len(image) == 120
        assert repeated_share(image, config, 24) == 1.0
        assert repeated_share(image, config, 12) < 0.5


def test_noise_is_the_share_of_pixels_that_are_random() -> None:
    config = SMALL.override({"noise": 0.3, "width": 64, "height": 64})
    share = sum(repeated_share(config.image(number), config, 128) for number in range(8)) / 8
    assert share == pytest.approx(0.7**2 + (1 - 0.7**2) / 16, abs=0.02)


def test_levels_are_shades_from_black_to_white_and_all_as_often() -> None:
    counts = Counter(pixel for number in range(200) for pixel in SMALL.override({"levels": 4}).image(number))
    assert sorted(counts) == [0, 85, 170, 255]
    assert max(counts.values()) / min(counts.values()) < 1.2


def test_every_image_is_a_document_of_one_split() -> None:
    texts = documents(SMALL)
    assert len(texts) == 60 and len(set(texts.values())) == 60
    split_counts = Counter(name.split()[0] for name in texts)
    assert set(split_counts) == set(SPLITS) and split_counts["train"] > 25
    assert texts == documents(SMALL), "the same again"


def test_every_field_changes_images_splits_and_the_fingerprint() -> None:
    changed_values = {
        "piece": 4096, "width": 13, "height": 11, "period": 3, "levels": 15, "noise": 0.5, "images": 61, "seed": 1,
        "validation": 0.3, "test": 0.3,
    }  # fmt: skip
    check_every_field(SMALL, changed_values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period": 10}, "an image of 10 rows does not repeat after 10"),
        ({"piece": 64}, "an image of 12 x 10 bytes is no document of at most 64; set piece"),
        ({"validation": 0.5, "test": 0.5}, "leave nothing to train on"),
    ],
)
def test_impossible_images_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL.override(changes)


def test_they_are_read_as_any_text_is() -> None:
    data = LanguageData(LanguageDataConfig(source=SMALL, segment_length=24, batch_size=2))
    targets = [t for batch in data.val_dataloader() for t in batch.targets.flatten().tolist() if t >= 0]
    held_out = sum(len(text) for name, text in documents(SMALL).items() if name.startswith("validation"))
    assert len(targets) == held_out
    assert math.log2(len(set(targets))) == 4.0


@pytest.mark.parametrize(("levels", "noise"), [(4, 0.3), (16, 0.1), (2, 0.8)])
def test_the_least_loss_is_that_of_who_weighs_all_copies_of_a_pixel(levels: int, noise: float) -> None:
    """By Bayes' rule, over many pixels: each shade is as likely as the copies that have it make it."""
    pixels, height = 20_000, 5
    random = np.random.default_rng(0)
    tile = random.integers(levels, size=pixels)
    counts, losses = np.zeros((pixels, levels)), []
    right, wrong = 1 - noise + noise / levels, noise / levels
    for _ in range(height):
        weights = (right / wrong) ** counts
        probabilities = wrong + (right - wrong) * weights / weights.sum(axis=1, keepdims=True)
        drawn = np.where(random.random(pixels) < noise, random.integers(levels, size=pixels), tile)
        losses.append(-np.log2(probabilities[np.arange(pixels), drawn]).mean())
        counts[np.arange(pixels), drawn] += 1
    known = PeriodicConfig(width=3, height=height, levels=levels, noise=noise).known_losses()
    assert known["no context"] == pytest.approx(np.log2(levels))
    assert known["every repetition"] == pytest.approx(np.mean(losses), abs=0.02)


def test_of_pixels_without_noise_the_first_rows_alone_are_unknown() -> None:
    known = PeriodicConfig(height=10, period=2, noise=0.0, levels=8).known_losses()
    assert known == {"no context": 3.0, "every repetition": 3.0 * 2 / 10}
