"""Layers above frozen ones are trained from cached outputs of these, with the losses and weights of a run that computes
them in every update."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from stopped_runs import stop_run
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.models.encoder import Encoder
from lit_transformers.runs import RunConfig, describe, fit
from lit_transformers.runs.feature_pass import feature_pass
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.features import FeatureTable
from lit_transformers.training.checkpoints import read
from lit_transformers.training.groups import FROZEN_NETWORK

WORDS = {"bad": ["awful", "cold", "dull", "grey"], "good": ["able", "best", "clear", "deep"]}
ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 3, "dropout": 0.1, "transform": "gelu"}
FREEZING = [{"parameters": ["embeddings", "layers 1-2"], "frozen": True, "mode": "eval"}]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, draw = tmp_path_factory.mktemp("texts") / "texts.csv", random.Random(0)
    with path.open("w", newline="") as file:
        rows = [(" ".join(draw.choices(WORDS[label], k=draw.randint(2, 8))), label) for label in [*WORDS] * 40]
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def tuned(texts: str, **changes: Any) -> RunConfig:
    source = {"kind": "labelled_texts", "path": texts, "labels": [*WORDS], "tokenizer": "words", "length": 10}
    plain = {
        "model": ENCODER | {"positions": "learned"},
        "task": {"kind": "classification", "pooling": "mean"},
        "data": {"kind": "labelled", "source": source | {"splits": "hash"}, "batch_size": 8},
        "training": {"steps": 12, "device": "cpu", "groups": FREEZING, "validate_every": 6},
    }
    return RunConfig.from_dict(plain).override(changes)


CACHED = {"training.cached_layers": 2}


def weights(folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = read(folder / "checkpoint.ckpt")["state_dict"]
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def cache(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(folder / "cache"))
        yield folder / "cache" / "features"


@pytest.fixture(scope="module")
def record(texts: str, folder: Path) -> dict[str, Any]:
    """The record of a run with cached layers, which fills the cache."""
    return fit(tuned(texts, **CACHED), folder / "cached")


def test_losses_and_weights_are_those_of_a_run_without_a_cache(
    texts: str, folder: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    embed = Encoder.embed
    monkeypatch.setattr(Encoder, "embed", lambda *args: rows.append(len(args[1])) or embed(*args))
    plain = fit(tuned(texts), folder / "plain")
    assert record["metrics"] == pytest.approx(plain["metrics"], rel=1e-6)
    torch.testing.assert_close(weights(folder / "cached"), weights(folder / "plain"), rtol=0, atol=1e-6)
    read, held_out = sum(rows), tuned(texts).build_data().examples.count("validation")  # type: ignore[attr-defined]
    rows.clear()
    warm = fit(tuned(texts, **CACHED), folder / "warm")
    assert read - sum(rows) == 12 * 8 + 2 * held_out
    assert record["measured"]["feature_seconds"] > 0 and "feature_seconds" not in warm["measured"]


def test_a_stopped_run_ends_as_the_undisturbed_one(texts: str, folder: Path, record: dict[str, Any]) -> None:
    stop_run(tuned(texts, **CACHED), folder / "resumed", Classification, 7)
    assert fit(tuned(texts, **CACHED), folder / "resumed")["metrics"] == record["metrics"]
    torch.testing.assert_close(weights(folder / "resumed"), weights(folder / "cached"), rtol=0, atol=0)


def test_the_key_covers_the_cached_weights_and_no_others(
    texts: str, folder: Path, record: dict[str, Any], cache: Path
) -> None:
    def tables(config: RunConfig, name: str) -> set[str]:
        before = {path.name for path in cache.iterdir()}
        fit(config.override({"training.steps": 1, "training.validate_every": None}), folder / name)
        return {path.name for path in cache.iterdir()} - before

    start = {"start.network": str(folder / "cached" / "checkpoint.ckpt")}
    config = tuned(texts, **CACHED)
    assert len(tables(config.override({"seed": 1}), "seed")) == 1, "another seed draws other weights"
    assert not tables(config.override(start | {"seed": 1}), "upper"), "weights above the cached layers do not count"
    assert len(tables(config.override(start | {"training.cached_layers": 1}), "lower")) == 1
    assert feature_pass(config) != feature_pass(config.override({"training.cached_layers": 1}))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("values.f32", lambda content: b""),
        ("index.npz", lambda content: b""),
        ("index.npz", lambda content: content[:100]),
        ("meta.json", lambda content: b"[1]"),
        ("meta.json", lambda content: content.replace(b'"width": 16', b'"width": 8')),
    ],
    ids=["values", "no index", "half an index", "list", "width"],
)
def test_a_damaged_cache_is_refused_in_a_line(
    texts: str, folder: Path, record: dict[str, Any], cache: Path, file: str, change: Any, tmp_path: Path
) -> None:
    own, *_ = cache.iterdir()
    whole = (own / file).read_bytes()
    assert change(whole) != whole
    (tmp_path / "table").mkdir()
    for part in own.iterdir():
        (tmp_path / "table" / part.name).write_bytes(part.read_bytes())
    (tmp_path / "table" / file).write_bytes(change(whole))
    with pytest.raises(ConfigError, match=r"^\S+: is a damaged cache.*; remove the folder") as refused:
        FeatureTable(tmp_path / "table", weights_of(own))
    assert "\n" not in str(refused.value)


def weights_of(table: Path) -> str:
    """Returns the digest of the weights that computed a table."""
    digest: str = json.loads((table / "meta.json").read_text())["weights"]
    return digest


def test_a_step_costs_no_pass_of_the_cached_layers(texts: str) -> None:
    plain, cached, probe = (
        describe(tuned(texts, **changes))
        for changes in ({}, CACHED, {"training.groups": [FROZEN_NETWORK], "training.cache_features": True})
    )
    head = probe.train_flops_per_token / 2
    assert plain.flops_per_token == cached.flops_per_token
    saved = plain.train_flops_per_token - cached.train_flops_per_token
    assert saved == pytest.approx((plain.flops_per_token - head) * 2 / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.groups": ()}, r"network\.tokens\.table\.weight learns, .*; set training\.groups to"),
        ({"training.groups": [{"parameters": ["embeddings"], "frozen": True}]}, "learns, which changes the outputs"),
        ({"training.groups": [FREEZING[0] | {"mode": "train"}]}, "in training mode, where dropout may change"),
        (
            {"model.adapter": "bottleneck", "training.groups": [*FREEZING, {"parameters": ["adapters"]}]},
            r"adapter.* learns, which changes",
        ),
        ({"model.stack": "shared", "training.groups": []}, "learns, which changes"),
        ({"model.stack": "reversible"}, "a reversible stack passes two streams"),
        ({"model.extra_tokens": 1}, r"model\.extra_tokens have no place in cached rows"),
        ({"task.combined_layers": (1, -1)}, r"task\.combined_layers reads layer 1; set it to 1 or less"),
        ({"training.cached_layers": 3}, "a stack of 3 layers cannot be divided after 3 of them"),
        (
            {"model": ENCODER | {"kind": "deformer", "positions": "learned", "apart": 3}},
            "3 layers read the two texts of a row apart",
        ),
        ({"training.cache_features": True}, "cache_features caches the whole network"),
        ({"training.precision": "bf16"}, "cached_layers holds outputs in float32"),
    ],
    ids=lambda value: next(iter(value)).rpartition(".")[2] if isinstance(value, dict) else "",
)
def test_what_may_change_the_cached_outputs_is_refused(
    texts: str, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        fit(tuned(texts, **CACHED).override(changes), tmp_path)
    assert "\n" not in str(refused.value)
