"""Measures of groups of examples: those of their documents alone, in a record, its documents and a report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.heads import ClassLabelConfig, Head
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.records.files import DOCUMENTS
from lit_transformers.runs import RunConfig, fit
from reports.judge.measures import measure_of
from reports.read.measurements import read_documents

CONFIG = RunConfig.from_dict(
    {
        "model": {"kind": "deformer", "dim": 16, "heads": 2, "depth": 2, "apart": 2, "segments": 2},
        "task": {"kind": "question_answering", "scores": "product", "longest_answer": 1},
        "data": {
            "kind": "labelled",
            "source": {"kind": "facts", "entities": 4, "questions": 9, "train": 200, "validation": 30},
            "batch_size": 36,
        },
        "training": {"steps": 20, "optimizer": {"kind": "adamw", "learning_rate": 1e-2}, "device": "cpu"},
    }
)
GROUPS = ("one_hop", "two_hops")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    record = fit(CONFIG, folder)
    assert record["outcome"] == "finished", record["reason"]
    return folder


def test_each_measure_is_given_once_more_for_the_documents_of_a_group(run: Path) -> None:
    metrics = json.loads((run / "record.json").read_text())["metrics"]
    rows: list[dict[str, Any]] = [*csv.DictReader((run / DOCUMENTS).open())]
    assert len(rows) == 270 and [sum(int(row[group]) for row in rows) for group in GROUPS] == [120, 150]
    read = read_documents(run / DOCUMENTS, [])
    assert read is not None
    for group in GROUPS:
        own = [row for row in rows if int(row[group])]
        for name in ("exact_match", "f1", "nats"):
            expected = float(np.mean([float(row[name]) for row in own]))
            assert metrics[f"val/{group}_{name}"] == pytest.approx(expected, rel=1e-5)
            measure = measure_of(f"val/{group}_{name}", read.others)
            assert measure is not None
            sums = measure.sums(read)
            sums = sums[np.isfinite(sums).all(axis=1)]
            assert len(sums) == len(own) and float(measure.value(sums.sum(axis=0))) == pytest.approx(expected, rel=1e-5)
    whole = sum(len([r for r in rows if int(r[group])]) * metrics[f"val/{group}_nats"] for group in GROUPS)
    assert metrics["val/nats"] == pytest.approx(whole / 270, rel=1e-5)
    assert metrics["val/one_hop_nats"] != pytest.approx(metrics["val/two_hops_nats"], rel=1e-3)


def test_what_is_better_of_a_measure_of_a_group_is_that_of_the_measure() -> None:
    measures = CONFIG.task.measures(CONFIG.data.restored({}))
    assert measures["two_hops_exact_match"] == measures["exact_match"]
    assert measures["one_hop_nats"].goal == "minimize" and len(measures) == 9


def test_a_group_with_the_name_of_a_column_is_refused() -> None:
    class Named(Head):
        columns = {"nats": float, "tokens": int, "one_hop": int}  # noqa: RUF012

        targets = loss = sums = lambda self, *args: None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="a group and a head have a column one_hop; give one of them another name"):
        HeadsMetric({"label": Named(ClassLabelConfig())}, groups=GROUPS)


def test_padding_belongs_to_no_group() -> None:
    class Plain(Head):
        targets = loss = sums = lambda self, *args: None  # type: ignore[assignment]

    metric = HeadsMetric({"label": Plain(ClassLabelConfig())}, groups=GROUPS)
    metric.update(torch.tensor([3, 4, 0]), {"label": torch.tensor([[1.0, 1.0], [3.0, 1.0], [0.0, 0.0]])})
    metric.add_groups(torch.tensor([3, 4, 0]), torch.tensor([0, 1, -100]))
    assert [(row.document, row.one_hop, row.two_hops) for row in metric.rows()] == [(3, 1, 0), (4, 0, 1)]
    assert metric.compute() == {"nats": 2.0, "one_hop_nats": 1.0, "two_hops_nats": 3.0}
