"""Every objective of pretraining learns and measures at one, two and four ranks the same numbers."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked

from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS, RECORD
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import train
from lit_transformers.training.stopping import Stop

pytestmark = pytest.mark.slow
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "positions": "learned", "segments": 2}
SOURCE = {"kind": "topics", "documents": 21, "sentences": 6, "validation": 0.3, "test": 0.1}
TEXT = {"source": SOURCE, "tokenizer": "words", "length": 24, "batch_size": 8, "window": 2}
ROWS = {"kind": "rows", "packing": "segment_pair", "evaluation": {"examples": 10}, **TEXT}
DENOISING = {"kind": "denoising", "evaluation": {"examples": 10}, **TEXT}
SPANS = {"kind": "mask_spans", "unchanged": 0.0, "replaced": 0.0}
RARE = {"kind": "adaptive", "cutoffs": [4, 8], "shrink": 2, "tied": False}
GENERATOR = {"overrides": {"dim": 4, "heads": 1}, "tie": "none"}
CASES: dict[str, dict[str, Any]] = {
    "masked_lm": {"task": "masked_lm", "data": ROWS | {"relation": "next_sentence"}},
    "span_boundary": {"task": {"kind": "masked_lm", "span_boundary": {"width": 4}}, "data": ROWS | {"noise": SPANS}},
    "weights_without_a_loss": {
        "model": ENCODER | {"tokens": RARE},
        "task": {"kind": "masked_lm", "heads": [{"kind": "span_boundary", "width": 4, "weight": 0.0}]},
        "data": ROWS,
    },
    "replaced_tokens": {"task": {"kind": "replaced_tokens", "generator": GENERATOR}, "data": ROWS},
    "uniform_tokens": {"task": {"kind": "replaced_tokens", "generator": {"draws": "uniform"}}, "data": ROWS},
    "permutation_lm": {"model": ENCODER | {"query_stream": "learned"}, "task": "permutation_lm", "data": ROWS},
    "contrastive": {"task": "contrastive", "data": ROWS | {"noise": SPANS}},
    "seq2seq": {
        "model": {"kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 1, "positions": "learned"},
        "task": {"kind": "seq2seq", "metrics": ["accuracy"]},
        "data": DENOISING,
    },
}
RANKS = (1, 2, 4)


def config_of(name: str) -> RunConfig:
    training = {"steps": 6, "device": "cpu", "log_every": 1, "validate_every": 6}
    return RunConfig.from_dict({"model": ENCODER, "training": training, **CASES[name]})


def train_all(folder: Path, ranks: int) -> None:
    """Does the runs of all objectives, one after another, and writes their metrics; for ``Forked``."""
    for name in CASES:
        config = config_of(name).override({"training.devices": ranks})
        metrics, _, _ = train(config, config.data.build(), folder / name, "its own", Stop())
        if int(os.environ.get("RANK", "0")) == 0:
            (folder / name / RECORD).write_text(json.dumps(metrics))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The runs of all objectives, by the number of ranks. Their six updates end in a second pass, which two or four
    ranks begin at different updates."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in CASES:
        data = config_of(name).data.build()
        data.prepare_data()
        rows = data.reader("train", ()).total
        assert rows < 6 * TEXT["batch_size"] and rows % 2 == 1, rows
    by_ranks = {ranks: folder / str(ranks) for ranks in RANKS}
    processes = []
    for ranks, place in by_ranks.items():
        for name in CASES:
            (place / name).mkdir(parents=True)
        processes.append(Forked(place / "output.txt", train_all, place, ranks, ranks=ranks if ranks > 1 else 0))
    for process in processes:
        process.finish()
    return by_ranks


def table(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.open())]


def numbers(folder: Path) -> dict[tuple[str, str], float]:
    """The curves of a run by step and name, and its last metrics."""
    curves = {(row["step"], row["name"]): float(row["value"]) for row in table(folder / CURVES)}
    metrics = {("last", name): value for name, value in json.loads((folder / RECORD).read_text()).items()}
    return curves | metrics


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("name", CASES)
def test_ranks_learn_and_measure_what_one_process_does(name: str, ranks: int, folders: dict[int, Path]) -> None:
    """Gradients are summed in another order, so float32 numbers differ in their last bits: 1e-4, not equality."""
    one, several = (folders[count] / name for count in (1, ranks))
    expected = numbers(one)
    assert ("6", "train/nats") in expected and any(name.startswith("val/") for _, name in expected)
    assert numbers(several) == pytest.approx(expected, rel=1e-4)
    weights = [torch.load(run / CHECKPOINT, weights_only=True)["state_dict"] for run in (several, one)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    rows = [[(row["document"], row["name"], row["tokens"]) for row in table(run / DOCUMENTS)] for run in (one, several)]
    assert rows[0] == rows[1] and len(rows[0]) == 10, "every row is measured once, with as much hidden in it"
