"""What a network could do before a run is measured with the weights that its first stage starts from, and after it with
those that it leaves, by the same heads; nothing that no step has trained is measured."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
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
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.training.groups import FROZEN_NETWORK

ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1, "transform": "gelu"}
WORDS = {"bad": ["awful", "cold", "dull", "grey"], "good": ["able", "best", "clear", "deep"]}
PROBE = {"steps": 30, "device": "cpu", "groups": [FROZEN_NETWORK.to_dict()], "optimizer.learning_rate": 1e-2}


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
    for source in config.start.sources().values():
        done(runs, getattr(source, "run"))
    directory = runs / run_key(config)
    assert fit(config, directory)["outcome"] == "finished"
    return directory


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in read_weights(directory / CHECKPOINT).tensors.items()
        if name.startswith("network.")
    }
