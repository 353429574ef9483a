"""A study of runs that write text, from their training to the tables of its report."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wandb.sdk.data_types.table import Table

from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.wandb_logging import _tables
from reports.judge.comparisons import Comparison, compare
from reports.judge.findings import Findings
from reports.read.outputs import BLEU_COLUMNS, bleu
from reports.read.study import Study, load_study
from reports.show.sections import all_tables

pytestmark = pytest.mark.slow
SEEDS = (0, 1)
WORDS = ["red", "green", "blue", "one", "two", "six"]


def words(folder: Path) -> dict[str, Any]:
    """A tiny parallel corpus: every line is its own translation, of four words or more, for BLEU has four orders."""
    generator = random.Random(0)
    for split, count in (("train", 1000), ("val", 30)):
        lines = [" ".join(generator.choices(WORDS, k=generator.randint(4, 6))) for _ in range(count)]
        for language in ("aa", "bb"):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    source = {"kind": "parallel", "path": str(folder), "source": "aa", "target": "bb"}
    return {"kind": "pairs", "source": source, "tokenizer": "words", "longest_source": 7, "longest_target": 7}


def strings() -> dict[str, Any]:
    """Strings to copy, all of one length."""
    generator = {"kind": "copy", "alphabet": 5}
    source = {"kind": "strings", "generator": generator, "max_length": 5, "lengths": "fixed"}
    return {"kind": "pairs", "source": source, "evaluation": {"examples": 30}}


def run_study(runs: Path, metric: str, data: dict[str, Any]) -> None:
    """Two arms, one of which trains so little that it must be worse, with two seeds each."""
    torch.set_num_threads(1)
    base = RunConfig.from_dict(
        {
            "model": {"kind": "encoder_decoder", "dim": 32, "heads": 2, "depth": 1, "positions": "learned"},
            "task": {"kind": "seq2seq", "metrics": ["bleu", "rouge", "accuracy"], "decoding": "greedy"},
            "data": data | {"tokens_per_batch": 200, "window": 256},
            "training": {"steps": 80, "device": "cpu", "optimizer": {"kind": "adam", "learning_rate": 0.005}},
        }
    )
    planned_runs: dict[str, list[dict[str, Any]]] = {"long": [], "short": []}
    for arm, steps in (("long", 80), ("short", 1)):
        for seed in SEEDS:
            record = fit(base.override({"training.steps": steps, "seed": seed}), runs / f"{arm}{seed}")
            assert record["outcome"] == "finished", record["reason"]
            planned_runs[arm].append({"seed": seed, "key": f"{arm}{seed}"})
    plan = {
        "version": 1,
        "study": "tiny",
        "question": "Does longer training help?",
        "metric": {"name": metric, "goal": "maximize"},
        "baseline": "long",
        "arms": [{"name": arm, "runs": arm_runs} for arm, arm_runs in planned_runs.items()],
    }
    (runs / "studies" / "tiny").mkdir(parents=True)
    (runs / "studies" / "tiny" / "plan.json").write_text(json.dumps(plan))


def load_comparison(runs: Path) -> tuple[Study, Comparison]:
    """The study as a report reads it, and its one comparison."""
    study, notes = load_study(runs, "tiny"), list[str]()
    assert not study.notes
    (comparison,) = compare(study, notes)
    assert not notes and comparison.documents == 30 and comparison.estimate is not None
    assert comparison.estimate.difference < 0 and comparison.estimate.interval is not None
    low, high = comparison.estimate.interval
    assert low < comparison.estimate.difference < high
    return study, comparison


def test_translations_get_intervals_over_seeds_and_documents_and_sacrebleus_tests_beside(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    run_study(tmp_path / "runs", "val/bleu", words(tmp_path / "corpus"))
    study, comparison = load_comparison(tmp_path / "runs")
    for run in study.runs:
        documents, record = run.documents(), run.record
        assert documents is not None and record is not None
        assert documents.others["rougeL"].mean() == pytest.approx(record.value("val/rougeL"), rel=1e-5)
        totals = np.array([documents.others[name].sum() for name in BLEU_COLUMNS])
        assert float(bleu(totals)) == pytest.approx(record.value("val/bleu"), rel=1e-9)
    tests = next(table for table in all_tables(Findings(study, (comparison,))) if table.name == "bleu_tests")
    assert [row[1].value for row in tests.rows] == ["0", "1"]
    assert all(isinstance(row[4].value, float) and row[4].value < 0.05 for row in tests.rows)


def test_strings_get_intervals_of_each_length(tmp_path: Path) -> None:
    run_study(tmp_path / "runs", "val/accuracy@5", strings())
    study, _ = load_comparison(tmp_path / "runs")
    assert all(run.value == run.record.metrics["val/accuracy"] for run in study.runs if run.record)


def test_wandb_shows_some_of_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "documents.csv").write_text("document,name,nats,tokens,bytes\n0,a,1.0,2,0\n")
    output = {"id": 0, "hypothesis": "the cat", "references": ["a cat", "this cat"]}
    (tmp_path / "outputs.jsonl").write_text(f"{json.dumps(output)}\n" * 40)
    tables = _tables(tmp_path)
    samples = tables["samples"]
    assert isinstance(samples, Table) and samples.columns == ["document", "hypothesis", "reference"]
    assert samples.data == [[0, "the cat", "a cat"]] * 32
    (tmp_path / "outputs.jsonl").unlink()
    assert tables.keys() == {"documents", "samples"} and _tables(tmp_path).keys() == {"documents"}
