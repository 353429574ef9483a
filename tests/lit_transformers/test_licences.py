"""Weights keep the licences of their sources, from a folder of Hugging Face through a run to an exported folder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lit_transformers.exchange.licences import licence_of_folder, write_licences
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import read_weights, write_weights


@pytest.mark.parametrize(
    ("name", "text", "licence"),
    [
        ("README.md", "---\nlanguage: en\nlicense: apache-2.0\n---\n# A card\n", "apache-2.0"),
        ("README.md", "---\ndate: 2026-11-27\nlicense: mit # of the code\n---\n", "mit"),
        ("README.md", "---\nlicense: [mit]\n---\n", None),
        ("README.md", "---\nlicense: {\n---\n", None),
        ("README.md", "license: mit\n", None),
        ("LICENSE", "\n  MIT License\n\nCopyright\n", "MIT License"),
        ("notes.txt", "MIT License", None),
    ],
)
def test_a_folder_states_its_licence_in_the_head_of_its_card_or_in_a_text(
    name: str, text: str, licence: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert licence_of_folder(tmp_path) == licence


def test_a_card_names_every_licence_and_one_alone_where_all_are_the_same(tmp_path: Path) -> None:
    write_licences(tmp_path, {"weights a": "mit", "data b": "mit"})
    assert licence_of_folder(tmp_path) == "mit"
    write_licences(tmp_path, {"weights a": "mit", "data b": "cc-by-4.0"})
    assert licence_of_folder(tmp_path) == "other"
    assert "| data b | cc-by-4.0 |" in (tmp_path / "README.md").read_text()


def test_licences_go_from_weights_through_two_runs_into_what_is_exported(tmp_path: Path) -> None:
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {n} of {n % 2}", "ab"[n % 2]) for n in range(60))])
    source = {
        "kind": "labelled_texts",
        "path": str(tmp_path / "texts.csv"),
        "labels": ["a", "b"],
        "splits": "hash",
        "tokenizer": {"kind": "wordpiece", "size": 60},
        "length": 12,
        "licence": "CC0",
    }
    model = {
        "kind": "encoder",
        "dim": 8,
        "heads": 2,
        "depth": 1,
        "norm": "post",
        "embedding_norm": True,
        "segments": 2,
        "transform": "gelu",
        "mixer": {"kind": "attention", "bias": True},
        "feedforward": {"kind": "dense", "activation": "gelu"},
        "tokens": {"kind": "full", "scaled": False},
        "positions": {"kind": "learned", "restart": "document", "max_length": 16},
        "norm_epsilon": 1e-12,
    }
    first = RunConfig.from_dict(
        {
            "model": model,
            "task": "classification",
            "data": {"kind": "labelled", "source": source, "batch_size": 4},
            "training": {"steps": 1, "device": "cpu"},
        }
    )
    assert fit(first, tmp_path / "first")["outcome"] == "finished"
    weights = read_weights(tmp_path / "first" / "checkpoint.ckpt")
    assert weights.licences == {"data texts.csv": "CC0"}
    distinct = {name: tensor for name, tensor in weights.tensors.items() if "tokens.logits.weight" not in name}
    others = weights._replace(tensors=distinct, licences={"weights of others": "mit"})
    write_weights(tmp_path / "weights.safetensors", others)
    second = first.override({"start.network": str(tmp_path / "weights.safetensors"), "seed": 1})
    assert fit(second, tmp_path / "second")["outcome"] == "finished"
    export_weights(tmp_path / "second" / "checkpoint.ckpt", tmp_path / "exported", "bert")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "| weights of others | mit |" in card and "| data texts.csv | CC0 |" in card
