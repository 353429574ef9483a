"""Arms that have learned next to nothing of the knowable part of their data are not compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_on_disk import key_of, name_of, product_arms, write_json, write_product

from lit_transformers.records.reference import Reference
from reports.gallery import to_gallery_markdown
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.judge.findings import Findings
from reports.judge.known import LEAST, share
from reports.read.study import load_study
from reports.report import find
from reports.show.answer import headline

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
CONTRAST = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]
SOURCE = {"protocol": "p", "metric": "perplexity", "cells": [{"arm": ON, "value": 26.8}, {"arm": OFF, "value": 29.0}]}
MARGIN = {"size": 0.1, "reason": "a small part of the known optimum"}


def findings(runs: Path, nothing: float, effects: dict[str, float], data: dict[str, Any] | None = None) -> Findings:
    """Returns the findings of a study whose baseline is at 2.5 bits; a predictor that knows nothing has ``nothing``
    bits, and one that knows all has none. data: the config of an arm's data, by its name."""
    known = [{"name": "no context", "value": nothing}, {"name": "8 symbols back", "value": 0.0}]
    metric = {"name": "val/bpb", "goal": "minimize", "margin": MARGIN}
    write_product(runs, effects, contrasts=CONTRAST, references=known, published=SOURCE, metric=metric)
    for arm, config in (data or {}).items():
        for seed in range(3):
            path = runs / key_of(arm, seed) / "record.json"
            write_json(path, json.loads(path.read_text()) | {"config": {"data": config}})
    return find(load_study(runs, "xl_recurrence"))


def test_arms_that_have_all_learned_next_to_nothing_are_not_equal_but_trained_too_little(tmp_path: Path) -> None:
    study = findings(tmp_path, 2.58, {"off": 0.03})
    [contrast] = [one for one in study.comparisons if one.kind == "contrast"]
    assert contrast.verdict is None and contrast.reason is not None
    assert contrast.reason.startswith("trained too little: none has learned more than 5.7% of the known optimum")
    text = headline(study)
    assert text.startswith("Trained too little to answer: of the known optimum, the baseline has learned 5.7%")
    assert "Equal" not in text and "a comparison needs an arm at 25%." in text
    [judged] = judge_comparisons(study)
    assert judged.agreement == "not judged"
    index = to_gallery_markdown([GalleryEntry("xl_recurrence", study, (judged,))])
    assert "Nothing is decided yet." in index and "every comparison | Trained too little to answer" in index


@pytest.mark.parametrize(
    ("nothing", "effects", "is_asked"),
    [
        (2.5 / (1 - LEAST) - 0.3, {}, False),
        (2.5 / (1 - LEAST) + 0.3, {}, True),
        (2.58, {"absolute": -1.0}, True),
        (2.58, {"off": -1.0}, True),
        (2.0, {}, False),
    ],
)
def test_one_arm_that_has_learned_shows_that_the_training_of_all_sufficed(
    tmp_path: Path, nothing: float, effects: dict[str, float], is_asked: bool
) -> None:
    study = findings(tmp_path, nothing, effects)
    [contrast] = [one for one in study.comparisons if one.kind == "contrast"]
    assert (contrast.verdict is not None) == is_asked == study.can_answer(contrast.weights)
    assert headline(study).startswith("Trained too little") != is_asked


def test_an_arm_that_reads_other_data_says_nothing_of_the_training_of_these(tmp_path: Path) -> None:
    other = {arm: {"source": "other"} for arm in (ON_ABSOLUTE, OFF_ABSOLUTE)}
    study = findings(tmp_path, 2.58, {"absolute": -1.0}, other)
    [contrast] = [one for one in study.comparisons if one.kind == "contrast"]
    assert contrast.verdict is None and not study.can_answer(contrast.weights)


def test_a_share_is_of_losses_and_of_accuracies_alike() -> None:
    falling, rising = ([Reference("a", first), Reference("b", last)] for first, last in ((3.0, 1.0), (0.1, 1.0)))
    assert share(falling, 2.5) == pytest.approx(0.25) and share(rising, 0.19) == pytest.approx(0.1)
    assert share([], 1.0) is None and share([falling[0], falling[0]], 1.0) is None
