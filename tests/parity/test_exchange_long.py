"""Weights of transformers' Longformer and BigBird give the same numbers here, and those written here the same there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, close, randomise
from starting import start_from_file
from torch import Tensor

from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.mixers import BigBirdConfig, WindowConfig
from lit_transformers.runs.starting_weights import read_weights, write_weights
from lit_transformers.tasks import MaskedLMConfig
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH = 37, 22
SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "hidden_size": 21,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 64,
}
MARKED = torch.zeros(3, LENGTH, dtype=torch.bool).index_put(
    (torch.tensor([0, 0, 2]), torch.tensor([0, 17, 5])), torch.tensor(True)
)


def longformer(folder: Path, windows: Any = (4, 4, 8, 4)) -> Any:
    config = transformers.LongformerConfig(
        **SIZES, attention_window=list(windows), type_vocab_size=1, layer_norm_eps=1e-5
    )
    return saved(transformers.LongformerForMaskedLM(config), folder)


def big_bird(folder: Path, **changes: Any) -> Any:
    fields = {"block_size": 4, "num_random_blocks": 2, "rescale_embeddings": True} | changes
    return saved(transformers.BigBirdForPreTraining(transformers.BigBirdConfig(**SIZES | fields, **EAGER)), folder)


def saved(model: Any, folder: Path) -> Any:
    randomise(model, std=0.2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.add_(1.0)  # else a layer's output would be small next to the tolerance
    model.save_pretrained(folder)
    return model.eval()


def our_task(imported: Path) -> MaskedLM:
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    data = RowDescription(vocabulary=vocabulary, length=60, mask=3, separator=4, segments=2, predictions=4, relations=2)
    weights = imported / "weights.safetensors"
    task = MaskedLMConfig().build(read_weights(weights).model, data, TrainingConfig())
    start_from_file(task, weights)
    return task.eval()


def batch(padding: int) -> tuple[Tensor, Tensor]:
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [13], [LENGTH - 2]])
    symbols = torch.randint(2, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    return symbols.masked_fill(~padding_mask, padding), padding_mask


def predicted(task: MaskedLM, padding: int, marked: Tensor) -> Tensor:
    symbols, real = batch(padding)
    hidden = task.network.read_row(symbols, real, marked & real).hidden[real]
    return task.network.tokens.log_probabilities(task.network.predict(hidden))


@pytest.mark.parametrize("marked", [MARKED, torch.zeros_like(MARKED)], ids=["global tokens", "none"])
@torch.no_grad()
def test_logits_of_longformer_are_those_of_transformers_and_of_what_is_exported(marked: Tensor, tmp_path: Path) -> None:
    """In single precision, for its softmax is. Windows differ in layers, and are odd in no layer of theirs."""
    theirs = longformer(tmp_path / "theirs")
    notes = import_weights(str(tmp_path / "theirs"), tmp_path / "in").notes
    assert [note.partition(":")[0] for note in notes] == [
        "the first 2 rows of the position table, which no token reads", "pooler", "relation head", "global tokens",
        "tokenizer",
    ]  # fmt: skip
    symbols, real = batch(1)

    def their_prediction(model: Any) -> Tensor:
        output = model(symbols, attention_mask=real.long(), global_attention_mask=(marked & real).long())
        logits: Tensor = output.logits
        return logits[real].log_softmax(dim=-1)

    expected = their_prediction(theirs)
    close(predicted(our_task(tmp_path / "in"), 1, marked), expected, 1e-5)
    assert export_weights(tmp_path / "in", tmp_path / "out").architecture == "longformer (LongformerForMaskedLM)"
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    close(their_prediction(again), expected, 1e-5)
    assert again.config.attention_window == [4, 4, 8, 4]


@torch.no_grad()
def test_a_bert_that_was_converted_is_read_by_transformers_as_a_longformer(tmp_path: Path) -> None:
    """In rows longer than those of the BERT, and than the window."""
    sizes = SIZES | {"max_position_embeddings": 16, "num_hidden_layers": 2}
    saved(transformers.BertForMaskedLM(transformers.BertConfig(**sizes)), tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    window = {"kind": "window", "window": 2, "global_tokens": "marked", "global_projections": "separate"}
    convert_weights(tmp_path / "in", tmp_path / "long", {"model.mixer": window}, 40)
    with pytest.raises(ConfigError, match=r"cannot be written as bert: mixer\.kind is 'window' here and 'attention'"):
        export_weights(tmp_path / "long", tmp_path / "out", "bert")
    export_weights(tmp_path / "long", tmp_path / "out", "longformer")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    symbols, real = batch(1)
    output = again(symbols, attention_mask=real.long(), global_attention_mask=(MARKED & real).long())
    close(predicted(our_task(tmp_path / "long"), 1, MARKED), output.logits[real].log_softmax(dim=-1), 1e-5)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(6, 3), ([6, 6, 6, 6], 3), ([2, 2, 6, 6], (1, 3)), ([2, 2, 2, 6], (1, 1, 1, 3))]
)
def test_windows_of_both_sides_become_those_of_one(theirs: Any, ours: Any, tmp_path: Path) -> None:
    longformer(tmp_path / "theirs", theirs if isinstance(theirs, list) else [theirs] * 4)
    change(tmp_path / "theirs", attention_window=theirs)
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    weights = read_weights(tmp_path / "in" / "weights.safetensors")
    mixer = weights.model.mixer
    assert isinstance(mixer, WindowConfig) and mixer.window == ours
    write_weights(tmp_path / "in" / "weights.safetensors", weights._replace(fields={}))  # those that came with it
    export_weights(tmp_path / "in", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())["attention_window"]
    assert written == (theirs if isinstance(theirs, list) else [theirs] * 4)


@torch.no_grad()
def test_logits_of_big_bird_are_those_of_transformers_where_every_block_sees_every_other(tmp_path: Path) -> None:
    """Rows of six blocks: with two random ones nothing is hidden here, and transformers is dense."""
    theirs = big_bird(tmp_path / "theirs")
    notes = import_weights(str(tmp_path / "theirs"), tmp_path / "in").notes
    assert [note.partition(":")[0] for note in notes] == ["random blocks", "tokenizer"]
    task, (symbols, real) = our_task(tmp_path / "in"), batch(0)
    assert task.model_config.mixer == BigBirdConfig(block=4, random=2, bias=True, dropout=0.1)

    def their_prediction(model: Any) -> Tensor:
        logits: Tensor = model(symbols, attention_mask=real.long()).prediction_logits
        return logits[real].log_softmax(dim=-1)

    expected = their_prediction(theirs)
    close(predicted(task, 0, torch.zeros_like(real)), expected, 1e-5)
    assert export_weights(tmp_path / "in", tmp_path / "out").architecture == "big_bird (BigBirdForPreTraining)"
    again = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out", **EAGER).eval()
    close(their_prediction(again), expected, 1e-5)
    hidden = task.network.read_row(symbols, real, torch.zeros_like(real)).hidden[:, 0]
    relation = theirs(symbols, attention_mask=real.long()).seq_relationship_logits
    close(task.heads["relation"].map(hidden), relation, 1e-5)


@torch.no_grad()
def test_numbers_of_big_bird_differ_in_longer_rows_as_the_note_says(tmp_path: Path) -> None:
    """Should this fail, the note can go: transformers then draws its blocks as they are drawn here."""
    theirs = big_bird(tmp_path / "theirs", block_size=2, num_random_blocks=1)
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    symbols, real = batch(0)
    logits = theirs(symbols, attention_mask=real.long()).prediction_logits[real].log_softmax(dim=-1)
    assert not torch.allclose(predicted(our_task(tmp_path / "in"), 0, torch.zeros_like(real)), logits, atol=1e-3)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_neither_has_here_is_refused_by_its_name(tmp_path: Path) -> None:
    longformer(tmp_path / "longformer")
    big_bird(tmp_path / "big_bird")
    for name, fields, message in (
        ("longformer", {"attention_window": [4, 3, 8, 4]}, "attention_window: wants an even window"),
        ("longformer", {"attention_window": [4, 8]}, "one for each of 4 layers"),
        ("longformer", {"attention_mode": "sliding_chunks"}, "attention_mode: is 'sliding_chunks'"),
        ("big_bird", {"attention_type": "original_full"}, "attention_type: is 'original_full'"),
    ):
        kept = (tmp_path / name / "config.json").read_text()
        change(tmp_path / name, **fields)
        with pytest.raises(ConfigError, match=message):
            import_weights(str(tmp_path / name), tmp_path / "in")
        (tmp_path / name / "config.json").write_text(kept)
    assert not (tmp_path / "in").exists()
