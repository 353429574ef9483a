"""Runs start from a folder of transformers by itself, and from its conversion to another mixer and longer rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, randomise
from safetensors.torch import load_file, save_file

from ablations import run_study
from ablations.ablation import Ablation, Metric
from ablations.plan import Request, make_plan
from lit_transformers.config import ConfigError
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.transfer import import_weights
from lit_transformers.runs import RunConfig, run_key
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.starting_weights import StartingWeights, read_weights

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "able", "best", "clear", "deep", "eager", "fair", "good"]
IMPORT = {"kind": "import", "path": "bert"}
WINDOW = {"kind": "window", "window": 4, "global_tokens": "marked", "global_projections": "separate", "bias": True}
CONVERTED = {"kind": "convert", "source": IMPORT, "set": {"model.mixer": WINDOW}, "length": 20}


def save_bert(folder: Path, seed: int = 0) -> None:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=12, **sizes, **EAGER)
    model = transformers.BertForMaskedLM(config)
    randomise(model)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that LIT_WEIGHTS names, with a small BERT; the cache is in it too."""
    save_bert(tmp_path / "bert")
    lines = [" ".join(PIECES[6 + n % 5 :][:3]) + "." for n in range(40)]
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    monkeypatch.setenv("LIT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def config(folder: Path, **start: Any) -> RunConfig:
    """A run whose network is that of its first source, and which hardly learns."""
    source = {"kind": "files", "path": str(folder / "text.jsonl"), "validation": 0.3, "test": 0.2}
    tokenizer = {"kind": "pretrained", "path": str(folder / "bert" / "vocab.txt")}
    data = {"kind": "rows", "source": source, "tokenizer": tokenizer, "length": 12, "batch_size": 2}
    still = {"steps": 1, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 1e-30}}
    plain = {"task": "masked_lm", "data": data, "training": still, "start": start}
    model = weights(RunConfig.from_dict(plain)).model
    return RunConfig.from_dict(plain | {"model": model.to_dict()})


def weights(config: RunConfig) -> StartingWeights:
    source = config.start.network
    assert source is not None
    return read_weights(file_of_source(source, "start.network"))


def test_a_study_starts_from_an_import_and_from_what_it_was_converted_to(folder: Path) -> None:
    """The files are those that the commands make, are made once, and bring their tokenizer. Paths are whole, for
    workers may descend from a process that was started before LIT_WEIGHTS was set."""
    imported = IMPORT | {"path": str(folder / "bert")}
    converted = CONVERTED | {"source": imported}
    first, second = config(folder, network=imported), config(folder, network=converted)
    import_weights(str(folder / "bert"), folder / "in")
    convert_weights(folder / "in", folder / "long", CONVERTED["set"], 20)
    for started, by_hand in ((first, "in"), (second, "long")):
        made, expected = weights(started), read_weights(folder / by_hand / "weights.safetensors")
        assert (made.model, made.symbols, made.fields) == (expected.model, expected.symbols, expected.fields)
        assert made.symbols is not None and started.build_data().trained_symbols() == made.symbols
        assert made.tensors.keys() == expected.tensors.keys()
        assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in made.tensors.items())
    assert run_key(first) == run_key(first.override({"start": {"network": str(folder / "in")}}))
    files = {path: path.stat().st_mtime_ns for path in (folder / "cache" / "weights").iterdir()}
    assert len(files) == 2
    level = {"model": second.model.to_dict(), "data.length": 20, "start.network": converted}
    ablation = Ablation(
        question="Is a window enough?",
        baseline=first,
        factors={"reading": {"attention": {}, "window": level}},
        seeds=1,
        metric=Metric("val/nats", goal="minimize"),
    )
    run_study(ablation, name="window", runs=folder / "runs", progress=False)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cache" / "weights").iterdir()} == files
    arms = make_plan("window", ablation, Request(), runs=folder / "runs").plan.arms
    records = [json.loads((folder / "runs" / arm.runs[0].key / "record.json").read_text()) for arm in arms]
    assert [record["outcome"] for record in records] == ["finished", "finished"]
    lines = [record["measured"]["started_from"] for record in records]
    assert "network.stack.entry.positions: 12 rows, repeated up to 20" in lines[1]
    assert not any("repeated" in line for line in lines[0])


def test_the_key_covers_the_content_of_the_folder_and_every_change(folder: Path) -> None:
    wider = CONVERTED | {"set": {"model.mixer": WINDOW | {"window": 6}}}
    sources = [IMPORT, CONVERTED, wider, CONVERTED | {"length": 24}, CONVERTED | {"seed": 1}]
    configs = [config(folder, network=source) for source in sources]
    keys = [run_key(one) for one in configs]
    assert len({*keys}) == len(keys)
    (folder / "bert").rename(folder / "moved")
    moved = configs[1].override({"start.network.source.path": "moved", "data.tokenizer.path": "moved/vocab.txt"})
    (folder / "bert").mkdir()
    elsewhere = {**configs[1].to_dict(), "start": moved.to_dict()["start"]}
    (folder / "bert" / "vocab.txt").write_text((folder / "moved" / "vocab.txt").read_text())
    assert run_key(RunConfig.from_dict(elsewhere)) == keys[1], "the path is no part of it"
    tensors = load_file(folder / "moved" / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.bias"] += 1
    save_file(tensors, folder / "moved" / "model.safetensors", {"format": "pt"})
    assert run_key(RunConfig.from_dict(elsewhere)) != keys[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (IMPORT | {"path": "none"}, r"^start\.network: none: no such folder \(LIT_WEIGHTS is .*\); put the folder of"),
        (CONVERTED | {"source": IMPORT | {"path": "none"}}, r"^start\.network\.source: none: no such folder"),
        (IMPORT | {"path": "empty"}, r"^start\.network: .*empty: has no config\.json"),
        (CONVERTED | {"set": {"task.noise": 1}}, r"^start\.network: task\.noise: is no part of the network"),
        (CONVERTED | {"source": {"run": {}}}, r"source cannot be of kind run; name the checkpoint\.ckpt"),
    ],
)
def test_what_cannot_be_made_is_refused_by_its_field(source: dict[str, Any], message: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        config(folder, network=source)
    assert not list(folder.glob("cache/weights/*.part"))


def test_a_folder_of_adapters_alone_is_refused_with_the_way_to_merge_them(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds adapters without their network; merge them"):
        import_weights(str(tmp_path), tmp_path / "imported")
