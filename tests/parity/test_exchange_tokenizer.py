"""The tokenizer of an exported run, read by transformers, makes of a text the row that the network has read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from datamodules.core.tokenizers import tokenizer_from_dict
from datamodules.rows.symbols import RowSymbols
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.tokenizer_files import NO_PADDING
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.training.checkpoints import read

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

TEXTS = ("The sun was low, and the river rose.", "Unknown: ψ")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.jsonl"
    words = ("the", "river", "rose", "sun", "low", "was", "and", "Rain", "fell", "The")
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(words, 9)) + ". " + " ".join(draw.choice(words, 7)) + "." for _ in range(80)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


ENCODER: dict[str, Any] = {
    "kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "norm": "post", "segments": 2, "embedding_norm": True,
    "norm_epsilon": 1e-12, "transform": "relu", "positions": {"kind": "learned", "restart": "document"},
    "tokens": {"kind": "full", "scaled": False}, "mixer": {"kind": "attention", "bias": True},
}  # fmt: skip
DECODER: dict[str, Any] = {
    "kind": "language_model", "dim": 8, "heads": 2, "depth": 1,
    "positions": {"kind": "learned", "restart": "document", "max_length": 64},
    "tokens": {"kind": "full", "scaled": False, "bias": False}, "mixer": {"kind": "attention", "bias": True},
}  # fmt: skip


def trained(corpus: Path, folder: Path, tokenizer: Any, task: str) -> Path:
    """The checkpoint of a run over these texts."""
    source = {"kind": "files", "path": str(corpus), "validation": 0.2, "test": 0.2}
    rows = {"kind": "rows", "length": 16, "evaluation": {"examples": 8}}
    data = rows if task == "masked_lm" else {"kind": "language", "segment_length": 16}
    plain = {
        "model": ENCODER if task == "masked_lm" else DECODER,
        "task": task,
        "data": data | {"source": source, "tokenizer": tokenizer, "batch_size": 2},
        "training": {"steps": 1, "device": "cpu"},
    }
    assert fit(RunConfig.from_dict(plain), folder)["outcome"] == "finished"
    return folder / "checkpoint.ckpt"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_rows_of_a_masked_language_model_are_those_of_the_run(kind: str, corpus: Path, tmp_path: Path) -> None:
    size = {"size": 60} if kind == "wordpiece" else {"size": 300}
    checkpoint = trained(corpus, tmp_path / "run", {"kind": kind, **size}, "masked_lm")
    lines = [line for line in export_weights(checkpoint, tmp_path / "out").notes if "tokenizer" in line]
    assert lines == ([] if kind == "wordpiece" else [NO_PADDING])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizer_from_dict(read(checkpoint)["lit_transformers"]["tokenizer"])
    symbols = RowSymbols.of(ours)
    first, second = (ours.encode(text.encode()).tolist() for text in TEXTS)
    row = [symbols.vocabulary.boundary, *first, symbols.separator]
    assert theirs(TEXTS[0])["input_ids"] == row
    pair = theirs(*TEXTS)
    assert pair["input_ids"] == [*row, *second, symbols.separator]
    assert pair["token_type_ids"] == [0] * len(row) + [1] * (len(second) + 1)
    assert theirs.pad_token_id == (0 if kind == "wordpiece" else None), "as rows are padded here"
    assert theirs.mask_token_id == symbols.mask and len(theirs) == symbols.vocabulary.size
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["pad_token_id"], fields["sep_token_id"]) == (theirs.pad_token_id, symbols.separator)
    assert theirs.encode("low [MASK] sun", add_special_tokens=False).count(symbols.mask) == 1


def test_rows_of_a_language_model_begin_with_the_boundary(corpus: Path, tmp_path: Path) -> None:
    checkpoint = trained(corpus, tmp_path / "run", {"kind": "bpe", "size": 300}, "causal_lm")
    assert export_weights(checkpoint, tmp_path / "out").notes == [NO_PADDING]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizer_from_dict(read(checkpoint)["lit_transformers"]["tokenizer"])
    for text in TEXTS:
        row = [ours.vocabulary.boundary, *ours.encode(text.encode()).tolist()]
        assert theirs(text)["input_ids"] == row
        assert theirs.decode(row, skip_special_tokens=True) == text
    assert theirs.bos_token_id == theirs.eos_token_id == ours.vocabulary.boundary == len(theirs) - 1
    network = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert network.bos_token_id == network.eos_token_id == theirs.eos_token_id and network.pad_token_id is None


def test_a_pretrained_tokenizer_is_written_with_its_own_special_symbols(corpus: Path, tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,", "the", "##iver", "sun"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = {"kind": "pretrained", "path": str(tmp_path / "vocab.txt")}
    checkpoint = trained(corpus, tmp_path / "run", tokenizer, "masked_lm")
    convert_weights(checkpoint, tmp_path / "converted", {}, 32)
    export_weights(tmp_path / "converted", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("the", "sun")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert theirs("the river")["input_ids"] == [2, pieces.index("the"), pieces.index("r"), pieces.index("##iver"), 3]
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (0, 1, 4)


@pytest.mark.parametrize("tokenizer", [{"kind": "wordpiece", "size": 60}, "pretrained"])
def test_an_import_reads_the_symbols_of_its_folder_in_whatever_run_starts_from_it(
    tokenizer: Any, corpus: Path, tmp_path: Path
) -> None:
    if tokenizer == "pretrained":
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,", "the", "##iver", "sun"]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces))
        tokenizer = {"kind": "pretrained", "path": str(tmp_path / "vocab.txt")}
    checkpoint = trained(corpus, tmp_path / "run", tokenizer, "masked_lm")
    export_weights(checkpoint, tmp_path / "out")
    assert not any("tokenizer" in note for note in import_weights(str(tmp_path / "out"), tmp_path / "in").notes)
    config = RunConfig.from_yaml(tmp_path / "run" / "run.yaml")
    path = tmp_path / "other.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"Sun was low, rain {number}."}) for number in range(40)))
    weights = tmp_path / "in" / "weights.safetensors"
    model, symbols = read_weights(weights).model, read_weights(weights).symbols
    with safe_open(weights, "pt") as file:
        header = json.loads(file.metadata()["lit_transformers"])
    del header["symbols"]
    save_file(load_file(weights), weights, {"lit_transformers": json.dumps(header)})
    assert symbols is not None and read_weights(weights).symbols == symbols, "an old import has its files next to it"
    started = config.override({"start": str(weights), "model": model, "data.source.path": str(path)})
    theirs, ours = started.build_data(), config.build_data()
    texts = [text.encode() for text in TEXTS]
    assert [theirs.tokenizer.encode(text).tolist() for text in texts] == [  # type: ignore[attr-defined]
        ours.tokenizer.encode(text).tolist()  # type: ignore[attr-defined]
        for text in texts
    ]
    assert fit(started, tmp_path / "again")["outcome"] == "finished"


def test_a_tokenizer_that_is_none_of_hugging_face_is_left_out_with_a_line(corpus: Path, tmp_path: Path) -> None:
    checkpoint = trained(corpus, tmp_path / "run", "words", "masked_lm")
    [line] = [line for line in export_weights(checkpoint, tmp_path / "out").notes if "tokenizer" in line]
    assert line == "tokenizer: left out, for one of words is none of Hugging Face"
    assert not (tmp_path / "out" / "tokenizer.json").exists()
