"""Two ranks on CPU: the numbers of one process, no hang, and stopping and resuming together."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked, training
from shared_device import train_alone

from lit_transformers.records.files import CHECKPOINT, DOCUMENTS, OUTPUTS, RECORD
from lit_transformers.runs import RunConfig, evaluate, fit, load
from lit_transformers.train_command import fit as fit_command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    """Five documents are evaluated, which two ranks do not divide."""
    return small_run.override(
        {
            "model.depth": 2,
            "data.evaluation.documents": 5,
            "training.steps": 20,
            "training.validate_every": 10,
            "training.log_every": 10,
            "training.devices": 2,
        }
    )


def fit_together(config: RunConfig, directory: Path) -> dict[str, Any]:
    training(config, directory).finish()
    return read_record(directory)


def read_record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / RECORD).read_text())


def documents(directory: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((directory / DOCUMENTS).open()))


def curve(directory: Path) -> dict[tuple[str, str], float]:
    return {
        (row["step"], row["name"]): float(row["value"]) for row in csv.DictReader((directory / "metrics.csv").open())
    }


@pytest.fixture(scope="module")
def two_rank_run(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two ranks; torchrun's own are those of ``tests/sweeps/test_torchrun.py``."""
    directory = tmp_path_factory.mktemp("two_ranks")
    config_path = directory / "wanted.yaml"
    config_path.write_text(config.to_yaml())
    Forked(directory / "output.txt", fit_command, config_path, directory, ranks=2).finish()
    return directory


@pytest.fixture(scope="module")
def one_process_run(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run by one process."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("one_process")
    train_alone(config, directory)
    return directory


def test_two_ranks_measure_what_one_process_does(two_rank_run: Path, one_process_run: Path) -> None:
    """Gradients are summed in another order, so float32 weights differ in their last bits: 1e-5, not equality."""
    assert read_record(two_rank_run)["outcome"] == "finished"
    metrics, expected = read_record(two_rank_run)["metrics"], read_record(one_process_run)["metrics"]
    assert metrics.keys() == expected.keys() and {"val/bpb", "val/nats"} <= metrics.keys()
    assert metrics == pytest.approx(expected, rel=1e-5)


def test_two_ranks_draw_the_curve_of_one_process(two_rank_run: Path, one_process_run: Path) -> None:
    values, expected = curve(two_rank_run), curve(one_process_run)
    assert ("20", "train/nats") in values and ("10", "val/bpb") in values
    assert values == pytest.approx(expected, rel=1e-5)


def test_every_document_is_measured_once(two_rank_run: Path, one_process_run: Path) -> None:
    rows, expected = documents(two_rank_run), documents(one_process_run)
    assert [row["document"] for row in rows] == ["0", "1", "2", "3", "4"]
    for name in ("name", "tokens", "bytes"):
        assert [row[name] for row in rows] == [row[name] for row in expected]
    assert [float(row["nats"]) for row in rows] == pytest.approx([float(row["nats"]) for row in expected], rel=1e-5)


def test_one_process_measures_the_checkpoint_of_two_ranks_as_they_did(two_rank_run: Path) -> None:
    """The weights are the same; rows of other batches are multiplied in other blocks, so sums differ in float32."""
    assert evaluate(two_rank_run / CHECKPOINT)["val/bpb"] == pytest.approx(
        read_record(two_rank_run)["metrics"]["val/bpb"], rel=1e-6
    )


@pytest.fixture(scope="module")
def one_document_config(config: RunConfig) -> RunConfig:
    """With dropout, so that every rank's random numbers matter, and one document, which one rank has not."""
    evaluation = {"training.validate_every": 20, "data.evaluation.documents": 1}
    return config.override({"model.dropout": 0.1, "training.steps": 40, **evaluation})


@pytest.fixture(scope="module")
def uninterrupted_run(one_document_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of its run, never stopped."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    fit_together(one_document_config, directory)
    return directory


def test_a_rank_without_a_document_waits_for_the_other(uninterrupted_run: Path) -> None:
    assert (
        read_record(uninterrupted_run)["outcome"] == "finished"
        and read_record(uninterrupted_run)["metrics"]["val/bpb"] > 0
    )
    assert [row["document"] for row in documents(uninterrupted_run)] == ["0"]


def test_ranks_that_are_stopped_leave_one_checkpoint_and_go_on_as_if_they_never_were(
    one_document_config: RunConfig, uninterrupted_run: Path, tmp_path: Path
) -> None:
    """Bit for bit: each rank resumes with its states, random numbers and place in the data."""
    process = training(one_document_config, tmp_path, 0.0)
    process.until((tmp_path / CHECKPOINT).exists)
    process.send(signal.SIGTERM)
    assert process.wait() == [143, 143], process.log.read_text()
    assert "stopped at step" in process.log.read_text()
    assert not (tmp_path / RECORD).exists()
    assert [path.name for path in tmp_path.glob("checkpoint*")] == [CHECKPOINT]
    checkpoint = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert 0 < checkpoint["global_step"] < 40 and len(checkpoint["random"]) == 2
    assert not torch.equal(checkpoint["random"][0]["cpu"], checkpoint["random"][1]["cpu"])
    record = fit_together(one_document_config, tmp_path)
    assert record["metrics"] == read_record(uninterrupted_run)["metrics"]
    assert curve(tmp_path) == curve(uninterrupted_run) and documents(tmp_path) == documents(uninterrupted_run)


@pytest.fixture(scope="module")
def strings() -> RunConfig:
    """Nine strings are evaluated, which two ranks do not divide; each batch holds those that one process would take."""
    evaluation = {"lengths": [3, 6], "examples": 9}
    data = {"kind": "generated", "max_length": 4, "lengths": "uniform", "batch_size": 8, "evaluation": evaluation}
    model = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "positions": "sinusoidal"}
    training = {"steps": 10, "device": "cpu", "devices": 2}
    return RunConfig.from_dict({"model": model, "task": "strings", "data": data, "training": training})


def test_two_ranks_learn_strings_as_one_process_does(strings: RunConfig, tmp_path: Path) -> None:
    record = fit_together(strings, tmp_path / "together")
    expected = fit(strings.override({"training.devices": 1}), tmp_path / "alone")
    assert record["outcome"] == expected["outcome"] == "finished"
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
    rows, expected_rows = (documents(tmp_path / name) for name in ("together", "alone"))
    for name in ("document", "name", "tokens", "length"):
        assert [row[name] for row in rows] == [row[name] for row in expected_rows]
    assert len(expected_rows) == 18


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_update_of_two_batches_on_two_ranks_is_one_of_a_large_batch(
    strategy: str, strings: RunConfig, tmp_path: Path
) -> None:
    """Rows are of unequal lengths, so that means of means would be others."""
    two_rank_config = strings.override(
        {"training.accumulate": 2, "training.strategy": strategy, "training.log_every": 1}
    )
    one_rank_config = two_rank_config.override(
        {"training.accumulate": 1, "training.devices": 1, "training.strategy": "ddp", "data.batch_size": 16}
    )
    record, expected = fit_together(two_rank_config, tmp_path / "together"), fit(one_rank_config, tmp_path / "alone")
    assert record["outcome"] == expected["outcome"] == "finished", record["reason"]
    assert record["cost"]["tokens"] == expected["cost"]["tokens"]
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
    assert curve(tmp_path / "together") == pytest.approx(curve(tmp_path / "alone"), rel=1e-4)


def test_what_stands_beside_the_network_is_sharded_too(tmp_path: Path) -> None:
    """A classifier's head is no part of its network, and would otherwise learn from each rank's own rows alone."""
    source = {"kind": "masked_sum", "length": 12, "ones": 2, "levels": 4, "train": 256}
    evaluation = {"examples": 19}
    data = {"kind": "labelled", "source": source, "batch_size": 16, "window": 1, "evaluation": evaluation}
    config = RunConfig.from_dict(
        {
            "model": {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1},
            "task": {"kind": "regression"},
            "data": data,
            "training": {"steps": 5, "device": "cpu", "devices": 2, "strategy": "fsdp"},
        }
    )
    alone = config.override({"training.devices": 1, "training.strategy": "ddp"})
    record, expected = fit_together(config, tmp_path / "together"), fit(alone, tmp_path / "alone")
    assert record["outcome"] == expected["outcome"] == "finished", record["reason"]
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_two_ranks_write_what_one_process_does_each_example_once(tmp_path: Path) -> None:
    """Nineteen pairs are evaluated, which two ranks do not divide; the weights are averaged on both."""
    source = {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 6}
    evaluation = {"lengths": [4, 6], "examples": 19}
    config = RunConfig.from_dict(
        {
            "model": {"kind": "encoder_decoder", "dim": 16, "heads": 2, "depth": 1, "positions": "learned"},
            "task": {
                "kind": "seq2seq",
                "metrics": ["bleu", "chrf", "rouge", "accuracy"],
                "decoding": {"kind": "beam", "beams": 2},
            },
            "data": {"kind": "pairs", "source": source, "tokens_per_batch": 64, "window": 32, "evaluation": evaluation},
            "training": {"steps": 100, "device": "cpu", "devices": 2, "average": {"last": 2, "every": 10}},
        }
    )  # fmt: skip
    record = fit_together(config, tmp_path)
    assert record["outcome"] == "finished", record["reason"]
    assert record["metrics"]["val/rouge1"] > 0 and {"val/bleu@4", "val/chrf@6"} <= record["metrics"].keys()
    task, _, _ = load(tmp_path / CHECKPOINT)
    with torch.no_grad():
        for batch in config.data.build().val_dataloader():
            task.validation_step(batch, 0)
    outputs = [json.loads(line) for line in (tmp_path / OUTPUTS).open(encoding="utf-8")]
    assert outputs == task.metric.outputs() and [output["id"] for output in outputs] == list(range(19))
    assert [row["document"] for row in documents(tmp_path)] == [str(index) for index in range(19)]
    expected = {f"val/{name}": value for name, value in task.metric.compute().items()}
    assert record["metrics"] == pytest.approx(expected, rel=1e-6)
