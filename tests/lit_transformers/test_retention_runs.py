"""Abilities of a network are measured before a run, with the weights that its first stage starts from, and after it,
with the weights that it leaves, by the same heads; no untrained part is measured."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.records.record import load_record
from lit_transformers.runs import RunConfig, fit, run_key
from lit_transformers.runs.evaluate import evaluate
from lit_transformers.runs.retention import retention_configs
from lit_transformers.runs.stages import source_runs
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.training.groups import FROZEN_NETWORK

ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1, "transform": "gelu"}
WORDS = {"bad": ["awful", "cold", "dull", "grey"], "good": ["able", "best", "clear", "deep"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, and with the same texts by two kinds of labels."""
    folder, draw = tmp_path_factory.mktemp("retention"), random.Random(0)
    texts = [(" ".join(draw.choices(WORDS[label], k=6)), label) for label in draw.choices([*WORDS], k=200)]
    with (folder / "texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text, _ in texts)
    for name, rows in {
        "labelled": texts,
        "other": [(text, "a" if text.split()[0] < "c" else "z") for text, _ in texts],
    }.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return folder


def pretraining(folder: Path, **training: Any) -> dict[str, Any]:
    source = {"kind": "files", "path": str(folder / "texts.jsonl"), "validation": 0.2, "test": 0.1}
    data = {"kind": "rows", "source": source, "tokenizer": "words", "length": 16, "batch_size": 16}
    return {"model": ENCODER, "task": "masked_lm", "data": data, "training": {"steps": 20, "device": "cpu"} | training}


def labelled(folder: Path, name: str, labels: list[str], **training: Any) -> dict[str, Any]:
    source = {"kind": "labelled_texts", "path": str(folder / f"{name}.csv"), "labels": labels}
    source |= {"tokenizer": "words", "length": 16, "splits": "hash"}
    task = {"kind": "classification", "pooling": "mean"}
    data = {"kind": "labelled", "source": source, "batch_size": 16}
    return {"task": task, "data": data, "training": {"steps": 10, "device": "cpu"} | training}


def fine_tuning(folder: Path, **fields: Any) -> RunConfig:
    plain = labelled(folder, "labelled", [*WORDS], **fields)
    return RunConfig.from_dict(plain | {"model": ENCODER, "start": {"network": {"run": pretraining(folder)}}})


def language(folder: Path) -> RunConfig:
    return RunConfig.from_dict(pretraining(folder, steps=0))


def probe(folder: Path) -> RunConfig:
    plain = labelled(folder, "other", ["a", "z"], steps=30, groups=[FROZEN_NETWORK.to_dict()])
    return RunConfig.from_dict(plain | {"model": ENCODER})


def done(runs: Path, config: RunConfig) -> Path:
    """Does a run after all that it starts from, each once, and returns its folder."""
    for source in source_runs(config).values():
        done(runs, source)
    directory = runs / run_key(config)
    assert fit(config, directory)["outcome"] == "finished"
    return directory


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in read_weights(directory / CHECKPOINT).tensors.items()
        if name.startswith("network.")
    }


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    """The folder of a pretraining and of a classifier that starts from it."""
    done(folder / "runs", fine_tuning(folder))
    return folder / "runs"


def test_before_is_measured_once_for_all_runs_that_start_from_the_same_weights(folder: Path) -> None:
    start = {"network": {"run": pretraining(folder), "seed": 0}}
    slow = fine_tuning(folder).override({"start": start})
    fast = slow.override({"training.steps": 12, "model.dropout": 0.1, "seed": 3, "data.seed": 3})
    pairs = [retention_configs(config, language(folder)) for config in (slow, fast)]
    assert pairs[0] is not None and pairs[1] is not None
    assert pairs[0].before == pairs[1].before
    assert run_key(pairs[0].before) == run_key(pairs[1].before) != run_key(pairs[0].after) != run_key(pairs[1].after)
    for pair, config in zip(pairs, (slow, fast), strict=True):
        source = pair.after.start.network
        assert source.run == config and run_key(source.run) == run_key(config), (
            "seeds follow the run, not the measurement"
        )
    further = slow.override({"start": {"network": {"run": slow.to_dict()}}})
    chained = retention_configs(further, language(folder))
    assert chained is not None and chained.before == pairs[0].before, "the weights that the first stage starts from"
    assert retention_configs(slow.override({"start": None}), language(folder)) is None
    seeded = fine_tuning(folder).override({"seed": 3, "data.seed": 3})
    own = retention_configs(seeded, language(folder))
    assert own is not None and own.before.start.network.run == seeded.get("start.network.run"), "of the seed of the run"


def test_hidden_words_are_predicted_by_the_head_of_the_first_weights_before_and_after(
    folder: Path, runs: Path, tmp_path: Path
) -> None:
    """Equal to an evaluation of the pretraining, and of its checkpoint with the network of the classifier."""
    classifier = fine_tuning(folder)
    pair = retention_configs(classifier, language(folder))
    assert pair is not None
    pretrained = runs / run_key(pair.before.start.network.run)
    before, after = (load_record(done(runs, config) / RECORD).metrics for config in pair)
    assert before["val/nats"] == load_record(pretrained / RECORD).metrics["val/nats"] != after["val/nats"]
    contents = torch.load(pretrained / CHECKPOINT, weights_only=True)
    contents["state_dict"] |= weights(runs / run_key(classifier))
    torch.save(contents, tmp_path / CHECKPOINT)
    assert evaluate(tmp_path / CHECKPOINT)["val/nats"] == pytest.approx(after["val/nats"], rel=1e-6)


def test_a_head_is_trained_on_the_frozen_network_of_each(folder: Path, runs: Path) -> None:
    classifier = fine_tuning(folder)
    pair = retention_configs(classifier, probe(folder))
    assert pair is not None
    before, after = (done(runs, config) for config in pair)
    for measured, source in ((before, pair.before.start.network.run), (after, classifier)):
        network, held = weights(runs / run_key(source)), weights(measured)
        assert network.keys() == held.keys() and all(torch.equal(network[name], held[name]) for name in held)
    values = [load_record(one / RECORD).metrics["val/nats"] for one in (before, after)]
    assert values[0] != values[1]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (
            "untrained",
            r"run\.training\.steps: heads\.label.* is in none of the weights .* no step trains it; set steps",
        ),
        ("thawed", r"run\.training: its steps would train the network that it measures; set training\.groups="),
        ("started", r"run\.start: it starts from the weights of each arm; drop start"),
    ],
)
def test_what_would_measure_something_else_is_refused_in_a_line(folder: Path, measured: str, message: str) -> None:
    untrained = probe(folder).override({"training.groups": (), "training.steps": 0})
    configs = {
        "untrained": untrained,
        "thawed": untrained.override({"training.steps": 3}),
        "started": fine_tuning(folder),
    }
    with pytest.raises(ConfigError, match=message) as error:
        retention_configs(fine_tuning(folder), configs[measured])
    assert "\n" not in str(error.value)


def test_the_head_of_a_task_that_was_learned_before_is_read_before_and_after(folder: Path, runs: Path) -> None:
    """A classifier is trained further by other labels, and measured by its own."""
    classifier = runs / run_key(fine_tuning(folder)) / CHECKPOINT
    plain = labelled(folder, "other", ["a", "z"]) | {"model": ENCODER, "start": {"network": str(classifier)}}
    measured = RunConfig.from_dict(labelled(folder, "labelled", [*WORDS], steps=0) | {"model": ENCODER})
    pair = retention_configs(RunConfig.from_dict(plain), measured)
    assert pair is not None
    before, after = (load_record(done(runs, config) / RECORD) for config in pair)
    assert before.metrics == load_record(classifier.with_name(RECORD)).metrics
    assert before.metrics["val/nats"] != after.metrics["val/nats"]
    assert "heads.label starts anew" not in after.measured["started_from"]
