"""Runs read the same batches on any number of ranks and of worker processes, and resume with another number of them.

Objectives that read rows are in ``test_pretraining_ranks.py``; that workers make the same batches of every kind of data
is in ``tests/datamodules/test_any_reader.py``.
"""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked, training

from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS, RECORD
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.train import train
from lit_transformers.training.stopping import Stop

pytestmark = pytest.mark.slow
SMALL = {"dim": 8, "heads": 2, "depth": 1}
RECURRENT = {"kind": "language_model", "mixer": {"kind": "attention", "memory": 8, "encoding": "xl"}, **SMALL}
ENCODER = {"kind": "encoder", "positions": "learned", "segments": 2, **SMALL}
PAIRS = {"kind": "encoder_decoder", "positions": "learned", **SMALL}
SOURCE = {"kind": "topics", "documents": 41, "sentences": 6, "validation": 0.3, "test": 0.1}
LANES = {"kind": "language", "source": SOURCE, "segment_length": 64, "batch_size": 8}
TOKENS = {"kind": "seq2seq", "metrics": ["accuracy"]}
STRINGS = {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 6}
LISTOPS = {"kind": "listops", "train": 45, "validation": 19}
CASES: dict[str, dict[str, Any]] = {
    "reset": {"model": RECURRENT, "task": "causal_lm", "data": LANES},
    "stream": {"model": RECURRENT, "task": "causal_lm", "data": LANES | {"documents": "stream"}},
    "pairs": {
        "model": PAIRS,
        "task": TOKENS,
        "data": {"kind": "pairs", "source": STRINGS, "tokens_per_batch": 64, "window": 16},
    },
    "labelled": {
        "model": ENCODER | {"segments": 1},
        "task": "classification",
        "data": {"kind": "labelled", "source": LISTOPS, "batch_size": 8, "window": 2},
    },
}
COUNTS = ((1, 0), (2, 0), (4, 2))
"""Of ranks, and of worker processes of each."""
STEPS = 6


def config_of(name: str, ranks: int, workers: int) -> RunConfig:
    training = {"steps": STEPS, "device": "cpu", "devices": ranks, "log_every": 1, "validate_every": STEPS}
    examples = {} if name in ("reset", "stream") else {"data.evaluation.examples": 19}
    config = RunConfig.from_dict({"training": training, **CASES[name]})
    return config.override({"data.workers": workers, **examples})


def train_all(folder: Path, ranks: int, workers: int) -> None:
    """Does the runs of all kinds of data, one after another, and writes their metrics; for ``Forked``."""
    for name in CASES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        config = config_of(name, ranks, workers)
        metrics, _, _ = train(config, config.data.build(), folder / name, "its own", Stop())
        if int(os.environ.get("RANK", "0")) == 0:
            (folder / name / RECORD).write_text(json.dumps(metrics))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """The runs of all kinds of data, by the numbers of ranks and workers."""
    folder = tmp_path_factory.mktemp("elastic")
    for name in CASES:
        config_of(name, 1, 0).data.build().prepare_data()
    by_counts = {counts: folder / "{}x{}".format(*counts) for counts in COUNTS}
    for (ranks, workers), place in by_counts.items():
        place.mkdir()
        Forked(place / "output.txt", train_all, place, ranks, workers, ranks=ranks if ranks > 1 else 0).finish()
    return by_counts


def table(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.open())]


def numbers(folder: Path) -> dict[tuple[str, str], float]:
    """The curves of a run by step and name, and its last metrics."""
    curves = {(row["step"], row["name"]): float(row["value"]) for row in table(folder / CURVES)}
    return curves | {("last", name): value for name, value in json.loads((folder / RECORD).read_text()).items()}


@pytest.mark.parametrize("counts", COUNTS[1:], ids="{0[0]} ranks, {0[1]} workers".format)
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_and_workers_reads_the_same_batches(
    name: str, counts: tuple[int, int], folders: dict[tuple[int, int], Path]
) -> None:
    """Gradients are summed in another order, so float32 numbers differ in their last bits: 1e-4, not equality."""
    one, several = (folders[each] / name for each in (COUNTS[0], counts))
    expected = numbers(one)
    assert (str(STEPS), "train/nats") in expected and any(name.startswith("val/") for _, name in expected)
    assert numbers(several) == pytest.approx(expected, rel=1e-4)
    weights = [torch.load(run / CHECKPOINT, weights_only=True)["state_dict"] for run in (several, one)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    rows = [[(row["document"], row["name"], row["tokens"]) for row in table(run / DOCUMENTS)] for run in (one, several)]
    assert rows[0] == rows[1] and len(rows[0]) >= 10, "every example is measured once"


def killed_and_gone_on(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The record of a run that is killed on four ranks once it has a checkpoint, and resumes with two."""
    process = training(config.override({"training.devices": 4}), folder, 0.0)
    process.until((folder / CHECKPOINT).exists)
    process.send(signal.SIGKILL)
    assert process.wait() == [-signal.SIGKILL] * 4
    step = torch.load(folder / CHECKPOINT, weights_only=True)["global_step"]
    assert 0 < step < config.training.steps and not (folder / RECORD).exists()
    training(config.override({"training.devices": 2, "data.workers": 2}), folder).finish()
    record: dict[str, Any] = json.loads((folder / RECORD).read_text())
    assert record["outcome"] == "finished", record["reason"]
    assert [(part["step"], part["ranks"]) for part in record["measured"]["ranks"]] == [(0, 4), (step, 2)]
    return record


@pytest.mark.parametrize("name", ["stream", "pairs"])
def test_a_run_that_was_killed_on_four_ranks_goes_on_with_two(name: str, tmp_path: Path) -> None:
    """The memory of each lane, the position in the data and the state of the optimizer go with it."""
    config = config_of(name, 1, 0).override({"training.steps": 20, "training.validate_every": 20})
    record = killed_and_gone_on(config, tmp_path / "killed")
    expected = fit(config, tmp_path / "alone")
    assert record["key"] == expected["key"] and "ranks" not in expected["measured"]
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
    curves = [
        {(row["step"], row["name"]): float(row["value"]) for row in table(tmp_path / run / CURVES)}
        for run in ("killed", "alone")
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert not record["measured"]["ranks"][1]["drawn_anew"]
    assert "dropout" not in (tmp_path / "killed" / "output.txt").read_text()


def test_other_random_numbers_are_told(tmp_path: Path) -> None:
    config = config_of("labelled", 1, 0).override(
        {"training.steps": 20, "training.validate_every": 20, "model.dropout": 0.1}
    )
    record = killed_and_gone_on(config, tmp_path)
    assert record["measured"]["ranks"][1]["drawn_anew"]
    [line] = [line for line in (tmp_path / "output.txt").read_text().splitlines() if "dropout" in line]
    assert line.startswith("resuming at step") and "with 2 ranks after 4" in line


def test_a_run_goes_on_whether_each_rank_holds_the_whole_network_or_a_part(tmp_path: Path) -> None:
    """Moments of the optimizer are cut and joined with the weights, which are in groups with different decays."""
    config = config_of("stream", 1, 0).override({"training.steps": 20, "training.validate_every": 20})
    parts = [config.override({"training.devices": ranks, "training.strategy": "fsdp"}) for ranks in (4, 2)]
    steps = [0]

    def goes_further() -> bool:
        path = tmp_path / "changing" / CHECKPOINT
        return path.exists() and torch.load(path, weights_only=True)["global_step"] > steps[-1]

    for changed in (parts[0], config):
        process = training(changed, tmp_path / "changing", 0.0)
        process.until(goes_further)
        process.send(signal.SIGKILL)
        process.wait()
        steps.append(torch.load(tmp_path / "changing" / CHECKPOINT, weights_only=True)["global_step"])
    training(parts[1], tmp_path / "changing").finish()
    record = json.loads((tmp_path / "changing" / RECORD).read_text())
    expected = fit(config, tmp_path / "alone")
    assert record["outcome"] == "finished" and record["key"] == expected["key"], record["reason"]
    assert [(part["step"], part["ranks"]) for part in record["measured"]["ranks"]] == [
        *zip(steps, (4, 1, 2), strict=True)
    ]
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
    weights = [
        torch.load(tmp_path / run / CHECKPOINT, weights_only=True)["state_dict"] for run in ("changing", "alone")
    ]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
