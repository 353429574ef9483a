"""A trained network reads the symbols that it was trained on, in every text and from every command."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import lightning as L
import pytest
import torch

from datamodules import Data, DataError, LanguageData, TrainedSymbols, tokenizer_from_dict, tokenizers_of
from lit_transformers.api import build_model, load_checkpoint
from lit_transformers.config import ConfigError
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.runs import RunConfig, cut_context, describe, evaluate, fit, load, run_key
from lit_transformers.runs.cut_context import context_losses
from lit_transformers.runs.evaluate import open_data
from lit_transformers.runs.keys import training_key
from lit_transformers.runs.probe import probe
from lit_transformers.runs.run_floors import floors
from lit_transformers.runs.starting_weights import WEIGHTS, read_weights
from lit_transformers.runs.train import contents
from lit_transformers.tasks import Task

CHECKPOINT = "checkpoint.ckpt"
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1}
DECODER = ENCODER | {"kind": "language_model"}
BOTH = {"kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 1}
TRAINING = {"steps": 1, "device": "cpu"}
STILL = TRAINING | {"optimizer": {"kind": "adamw", "learning_rate": 1e-30}}
WORDS = {"neg": ["awful", "bad", "cold", "dull"], "pos": ["able", "best", "clear", "deep"]}


def saved(config: RunConfig, path: Path) -> Path:
    """The checkpoint of a run that has not been trained; all but its weights equals the contents of any other."""
    data = config.build_data()
    task = config.build_task(data)
    torch.save({"lit_transformers": contents(config, data, "its own"), "state_dict": task.state_dict()}, path)
    return path


def opened(checkpoint: Path, **changes: Any) -> Data:
    """The data that a checkpoint is evaluated on, with changes of its run's config."""
    task, config, extra = load(checkpoint, {f"data.{name.replace('__', '.')}": v for name, v in changes.items()})
    return open_data(checkpoint, task, config, extra)


def reviews(path: Path, most: str, count: int = 150) -> str:
    """Texts whose words tell their label, those of one label being more frequent, with a word of each file."""
    draw, labels = Random(0), (most, *WORDS)
    rows = [(f"{path.stem} {' '.join(draw.choices(WORDS[labels[n % 3]], k=3))}", labels[n % 3]) for n in range(count)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def classifier(path: str, labels: list[str] | None = None, tokenizer: Any = "words", **fields: Any) -> RunConfig:
    source = {
        "kind": "labelled_texts",
        "path": path,
        "labels": labels or [*WORDS],
        "tokenizer": tokenizer,
        "length": 16,
        "splits": "hash",
    }
    optimizer = {"kind": "adamw", "learning_rate": 0.02}
    plain = {
        "model": ENCODER,
        "task": {"kind": "classification", "pooling": "mean"},
        "data": {"kind": "labelled", "source": source, "batch_size": 16},
        "training": TRAINING | {"steps": 30, "optimizer": optimizer},
    }
    return RunConfig.from_dict(plain | fields)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a classifier that has learned all there is to know: the frequent words of its file are those of
    one label, and in the other file, which has as many words, those of the other one."""
    folder = tmp_path_factory.mktemp("trained")
    reviews(folder / "one.csv", "neg")
    reviews(folder / "two.csv", "pos")
    assert fit(classifier(str(folder / "one.csv")), folder / "run")["metrics"]["val/accuracy"] == 1.0
    return folder


def test_a_classifier_knows_the_words_of_another_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured on it, and as the start of a run whose rate moves nothing."""
    checkpoint, other = trained / "run" / CHECKPOINT, str(trained / "two.csv")
    assert evaluate(checkpoint)["val/accuracy"] == 1.0 and "unknown" not in capsys.readouterr().err
    assert evaluate(checkpoint, {"data.source.path": other})["val/accuracy"] == 1.0
    assert "validation: 25.00% of " in (line := capsys.readouterr().err) and f"tokenizer of {CHECKPOINT}" in line
    still = classifier(other, start=str(checkpoint), training=STILL)
    assert fit(still, trained / "again")["metrics"]["val/accuracy"] == 1.0
    assert "train: 25.00% of " in capsys.readouterr().out


def test_labels_follow_their_names_and_one_that_was_never_trained_is_refused(trained: Path) -> None:
    checkpoint = trained / "run" / CHECKPOINT
    assert evaluate(checkpoint, {"data.source.labels": ["pos", "neg"]})["val/accuracy"] == 1.0
    for reads in (
        lambda labels: evaluate(checkpoint, {"data.source.labels": labels}),
        lambda labels: classifier(str(trained / "one.csv"), labels, start=str(checkpoint)).build_data().description,
    ):
        with pytest.raises(DataError, match=r"data\.source: the label 'fair' was never trained; .* neg, pos"):
            reads(["neg", "pos", "fair"])


def test_a_training_file_that_was_edited_changes_no_symbol_of_its_network(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.csv"
    reviews(path, "neg")
    config = classifier(str(path))
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    tokenizer, key = config.build_data().trained_symbols(), run_key(config)
    reviews(path, "pos")
    assert opened(checkpoint).trained_symbols() == tokenizer != config.build_data().trained_symbols()
    assert run_key(config) != key
    assert fit(classifier(str(trained / "one.csv")), trained / "run")["outcome"] == "finished"
    edited = trained / "edited"
    edited.mkdir()
    (edited / CHECKPOINT).write_bytes(checkpoint.read_bytes())
    with pytest.raises(ConfigError, match="holds another run"):
        fit(config, edited)


def text(path: Path, *lines: str) -> str:
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return str(path)


def over_text(kind: str, path: str, tokenizer: Any, **fields: Any) -> RunConfig:
    source = {"kind": "files", "path": path, "validation": 0.3, "test": 0.2}
    data: dict[str, Any] = {"kind": kind, "source": source, "tokenizer": tokenizer, "batch_size": 2}
    data |= {"segment_length": 8} if kind == "language" else {"length": 12}
    task = {"language": "causal_lm", "rows": "masked_lm", "denoising": "seq2seq"}[kind]
    model = {"language": DECODER, "rows": ENCODER, "denoising": BOTH}[kind]
    return RunConfig.from_dict({"model": model, "task": task, "data": data, "training": TRAINING} | fields)


OLD, NEW = [f"zyzy zebra {'abcd'[n % 4]}." for n in range(40)], [f"yzyz zebra {'bcdq'[n % 4]}." for n in range(40)]


@pytest.mark.parametrize("kind", ["language", "rows", "denoising"])
@pytest.mark.parametrize("tokenizer", ["characters", "words", {"kind": "bpe", "size": 262}, "wordpiece"])
def test_another_text_is_read_in_the_symbols_of_training(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """In an evaluation of the checkpoint on another text, and in a run that starts from it."""
    old = over_text(kind, text(tmp_path / "old.jsonl", *OLD), tokenizer)
    checkpoint = saved(old, tmp_path / CHECKPOINT)
    plain = load(checkpoint)[2]["tokenizer"]
    expected = tokenizer_from_dict(plain)
    new = over_text(kind, text(tmp_path / "new.jsonl", *NEW), tokenizer)
    started = new.override({"start": str(checkpoint)})
    for data in (opened(checkpoint, source__path=str(tmp_path / "new.jsonl")), started.build_data()):
        assert new.build_data().trained_symbols().tokenizer != plain == data.trained_symbols().tokenizer
        assert data.description.vocabulary == old.build_data().description.vocabulary
        used, symbols = next(data.encoded("validation"))
        assert used.to_dict() == plain and symbols.max() < expected.vocabulary.size
        if kind == "language":
            boundary, first = expected.vocabulary.boundary, set()
            for batch in data.val_dataloader():
                rows = zip(batch.inputs, batch.padding_mask, strict=True)
                first |= {tuple(row[real].tolist()) for row, real in rows if row[0] == boundary}
            assert first and first <= {(boundary, *expected.encode(line.encode()).tolist())[:-1][:8] for line in NEW}


def test_what_is_unknown_is_counted_as_text_in_the_old_symbols(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = saved(over_text("language", text(tmp_path / "a.jsonl", *OLD), "characters"), tmp_path / CHECKPOINT)
    lines = [f"abqq{n % 10}" for n in range(40)]
    data = opened(checkpoint, source__path=text(tmp_path / "b.jsonl", *lines))
    count = sum(1 for _ in data.encoded("validation"))
    assert f"validation: 60.00% of {5 * count} symbols are unknown" in capsys.readouterr().err
    task = load(checkpoint)[0]
    for batch in data.val_dataloader():
        task.validation_step(batch, 0)
    rows = task.metric.per_document()
    assert len(rows) == count and all((row.tokens, row.bytes) == (5, 5) for row in rows)


def translations(folder: Path, words: str) -> str:
    """Files of sources, in capitals, and of targets."""
    folder.mkdir()
    for split, count in (("train", 30), ("val", 8)):
        lines = [" ".join(words.split()[n % 3 :][:3]) for n in range(count)]
        (folder / f"{split}.en").write_text("\n".join(map(str.upper, lines)))
        (folder / f"{split}.de").write_text("\n".join(lines))
    return str(folder)


@pytest.mark.parametrize("shared", [True, False])
def test_both_sides_of_pairs_are_read_in_their_symbols(shared: bool, tmp_path: Path) -> None:
    source = {"kind": "parallel", "path": translations(tmp_path / "a", "eins zwei drei vier fünf")}
    data: dict[str, Any] = {"kind": "pairs", "source": source}
    data |= {"tokenizer": "words"} | ({} if shared else {"source_tokenizer": "words"})
    task = {"kind": "seq2seq", "metrics": ["accuracy"]}
    config = RunConfig.from_dict({"model": BOTH, "task": task, "data": data, "training": TRAINING})
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    tokenizers = tokenizers_of(load(checkpoint)[2])
    assert (tokenizers[0] is tokenizers[1]) == shared
    path = translations(tmp_path / "b", "drei zwei eins sechs fünf")
    started = config.override({"data.source.path": path, "start": str(checkpoint)})
    for other in (opened(checkpoint, source__path=path), started.build_data()):
        known: set[str] = set()
        for batch in other.val_dataloader():
            sides = (batch.source, batch.source_padding_mask), (batch.inputs, batch.padding_mask)
            for tokenizer, (symbols, mask) in zip(tokenizers, sides, strict=True):
                known |= {tokenizer.decode(row[real].tolist()) for row, real in zip(symbols, mask, strict=True)}
        assert {"DREI ZWEI EINS", "ZWEI EINS <unk>", "drei zwei eins", "eins <unk> fünf"} <= known
    if shared:
        with pytest.raises(ConfigError, match=r"data\.source_tokenizer: the network was trained with one tokenizer"):
            started.override({"data.source_tokenizer": "words"}).build_data()


GENERATED: dict[str, Any] = {"kind": "generated"}
PAIRS = {"kind": "pairs", "source": {"kind": "strings", "generator": {"kind": "copy", "alphabet": 5}}}
NEEDLES = {"kind": "labelled", "source": {"kind": "needle", "length": 8, "distance": 4}}
REPLACE = {"kind": "characters", "errors": "replace"}
CHARACTERS = {"kind": "language", "tokenizer": REPLACE}
LAGS = {"kind": "lags", "symbols": 4, "lags": [2], "shares": [0.5], "length": 32, "documents": 200}
IMAGES = {"kind": "periodic", "images": 200, "levels": 3}
OTHERS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "strings": (
        DECODER,
        "strings",
        GENERATED | {"generator": "recall", "max_length": 40},
        {"data.max_length": 24, "data.seed": 3},
        {"data.generator": {"kind": "selective_copy", "alphabet": 63, "copied": 4}},
    ),
    "words": (
        DECODER,
        "strings",
        GENERATED | {"max_length": 6},
        {"data.generator": "reverse"},
        {"data.generator.alphabet": 9},
    ),
    "keys": (
        DECODER,
        "strings",
        GENERATED | {"generator": "in_context_recall", "max_length": 12},
        {"data.evaluation.lengths": [8]},
        {"data.generator.keys": 6, "data.generator.values": 10},
    ),
    "pairs of strings": (
        BOTH,
        {"kind": "seq2seq", "metrics": ["accuracy"]},
        PAIRS,
        {"data.source.max_length": 9},
        {"data.source.generator": {"kind": "addition", "base": 4}},
    ),
    "needles": (
        ENCODER,
        "classification",
        NEEDLES,
        {"data.source.bias": 0.1},
        {"data.source.noise": 15, "data.source.classes": 3},
    ),
    "lags": (
        DECODER,
        "causal_lm",
        CHARACTERS | {"source": LAGS},
        {"data.source.seed": 5, "data.source.symbols": 3},
        {"data.source.symbols": 6},
    ),
    "images": (
        DECODER,
        "causal_lm",
        CHARACTERS | {"source": IMAGES},
        {"data.source.noise": 0.2},
        {"data.source.levels": 4},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_symbols_that_stand_for_no_text_are_those_of_training(name: str, tmp_path: Path) -> None:
    """Fields that decide the symbols may not change; fields that decide the questions may."""
    model, task_config, data_config, allowed, refused = OTHERS[name]
    config = RunConfig.from_dict({"model": model, "task": task_config, "data": data_config, "training": TRAINING})
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    task, changed, extra = load(checkpoint, allowed)
    known = config.build_data().description.vocabulary
    assert open_data(checkpoint, task, changed, extra).description.vocabulary == known
    with pytest.raises((ConfigError, DataError), match=r"^data.*(restore|train anew)") as error:
        task, changed, extra = load(checkpoint, refused)
        open_data(checkpoint, task, changed, extra)
    assert "\n" not in str(error.value)
    with pytest.raises((ConfigError, DataError), match=r"^data"):
        config.override(refused | {"start": str(checkpoint)}).build_data()


def test_a_tokenizer_is_not_chosen_for_a_trained_network(tmp_path: Path) -> None:
    config = over_text("language", text(tmp_path / "old.jsonl", *OLD), {"kind": "words", "size": 5})
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    whole = {"data": {"kind": "language", "tokenizer": "bpe"}}
    for changes in ({"data.tokenizer.size": 4}, {"data.tokenizer": "characters"}, whole):
        with pytest.raises(ConfigError, match=r"data\.tokenizer.*: a trained network reads with its own"):
            load(checkpoint, changes)
    assert load(checkpoint, {"data.tokenizer.size": 5})[1] == config
    for other, message in (
        ("bytes", r"data\.tokenizer: bytes gives other symbols than the network's tokenizer, of words"),
        ("characters", r"data\.tokenizer: characters gives other symbols than the network's tokenizer, of words"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.override({"data.tokenizer": other, "start": str(checkpoint)}).build_data()
    learned = config.override({"data.tokenizer.size": 4, "start": str(checkpoint)}).build_data()
    assert len(learned.trained_symbols().tokenizer["words"]) == 5


def test_bytes_that_are_no_text_are_treated_as_is_asked(tmp_path: Path) -> None:
    """The treatment does not change the meaning of symbols, and an error names it as the way out."""
    folder = tmp_path / "new"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_bytes(b"zyzy zebra \xff")
    checkpoint = saved(over_text("language", text(tmp_path / "old.jsonl", *OLD), "characters"), tmp_path / CHECKPOINT)
    with pytest.raises(DataError, match=r"set data\.tokenizer\.errors=replace"):
        list(opened(checkpoint, source__path=str(folder)).encoded("validation"))
    for data in (
        opened(checkpoint, source__path=str(folder), tokenizer__errors="replace"),
        over_text("language", str(folder), REPLACE, start=str(checkpoint)).build_data(),
    ):
        assert [symbols.tolist()[:2] for _, symbols in data.encoded("validation")]
        assert data.trained_symbols().tokenizer["alphabet"] == load(checkpoint)[2]["tokenizer"]["alphabet"]


def vocabulary(path: Path, *words: str) -> dict[str, Any]:
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return {"kind": "pretrained", "path": str(path)}


def test_the_file_of_a_tokenizer_that_was_edited_changes_keys_and_no_symbol(tmp_path: Path) -> None:
    """Of runs that would take over the weights of a run over other symbols, too."""
    tokenizer = vocabulary(tmp_path / "vocab.txt", "zyzy", "zebra", "a", ".")
    config = over_text("rows", text(tmp_path / "old.jsonl", *OLD), tokenizer)
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    data = config.build_data()
    before, keys = data.trained_symbols(), (run_key(config), training_key(config, data))
    vocabulary(tmp_path / "vocab.txt", "zebra", "zyzy", "a", ".")
    assert before == opened(checkpoint).trained_symbols() != config.build_data().trained_symbols()
    assert {run_key(config), training_key(config, config.build_data())}.isdisjoint(keys)
    with pytest.raises(
        ConfigError, match=r"data\.tokenizer: pretrained gives other symbols than the network's tokenizer; set"
    ):
        config.override({"start": str(checkpoint)}).build_data()


def test_files_of_weights_hold_their_tokenizers_and_labels(tmp_path: Path) -> None:
    """The files that convert writes from a run with any tokenizer, and the files that it writes from those files."""
    config = classifier(reviews(tmp_path / "one.csv", "neg"))
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    symbols = config.build_data().trained_symbols()
    convert_weights(checkpoint, tmp_path / "first", {}, 24)
    convert_weights(tmp_path / "first", tmp_path / "second", {}, 32)
    other = reviews(tmp_path / "two.csv", "pos")
    for path in (checkpoint, tmp_path / "first" / WEIGHTS, tmp_path / "second" / WEIGHTS):
        started = classifier(other, ["pos", "neg"], start=str(path))
        assert read_weights(path).symbols == started.build_data().trained_symbols() == symbols
        assert build_model(started).data.vocabulary == config.build_data().description.vocabulary
    assert run_key(started) != run_key(classifier(other, ["pos", "neg"]))
    (tmp_path / "first" / "vocab.txt").write_text("zebra")
    assert read_weights(tmp_path / "first" / WEIGHTS).symbols == symbols, "files next to it change nothing"


def test_an_old_checkpoint_reads_as_the_data_of_its_run_tell_while_they_are_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "text.csv"
    config = classifier(reviews(path, "neg")).override({"training": TRAINING})
    fit(config, tmp_path / "run")
    old = torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)
    for name in (*TrainedSymbols._fields, "content"):
        del old["lit_transformers"][name]
    torch.save(old, checkpoint := tmp_path / CHECKPOINT)
    other, symbols = reviews(tmp_path / "two.csv", "pos"), config.build_data().trained_symbols()
    assert opened(checkpoint, source__path=other).trained_symbols() == symbols
    assert read_weights(checkpoint).symbols == symbols
    reviews(path, "pos")
    for read in (load, read_weights, evaluate):
        with pytest.raises(
            ConfigError, match=r"before checkpoints held the meaning of their symbols, .*; put them back"
        ):
            read(checkpoint)


def test_floors_and_probes_of_a_run_that_starts_from_weights_are_in_its_symbols(tmp_path: Path) -> None:
    config = over_text("language", text(tmp_path / "old.jsonl", *OLD), "characters")
    checkpoint = saved(config, tmp_path / CHECKPOINT)
    other = config.override({"data.source.path": text(tmp_path / "new.jsonl", *[f"{line}xw" for line in NEW])})
    started = other.override({"start": str(checkpoint)})
    size = config.build_data().description.vocabulary.size
    assert describe(started).parameters == describe(config).parameters != describe(other).parameters
    assert floors(started, "val/bpb") != floors(other, "val/bpb")
    assert build_model(started).data.vocabulary.size == size != build_model(other).data.vocabulary.size
    assert probe(started).seconds > 0


def test_the_context_of_a_network_is_measured_in_its_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "text.jsonl", list[Any]()
    checkpoint = saved(over_text("language", text(path, *OLD), "characters"), tmp_path / CHECKPOINT)
    text(path, *NEW)

    def sampled_rows(data: LanguageData, longest: int, count: int) -> torch.Tensor:
        read.append(data.tokenizer.to_dict())
        return torch.zeros(2, longest + 1, dtype=torch.long)

    monkeypatch.setattr(cut_context, "sampled_rows", sampled_rows)
    context_losses(checkpoint, symbols=64)
    assert read == [load(checkpoint)[2]["tokenizer"]]


def test_a_task_that_any_trainer_has_trained_reads_other_data_by_its_symbols(tmp_path: Path) -> None:
    """Loaded from its checkpoint, from that of a run, or with the checkpoint named to the trainer; in data that were
    already opened, too."""
    old = over_text("language", text(tmp_path / "old.jsonl", *OLD), "characters")
    new = old.override({"data.source.path": text(tmp_path / "new.jsonl", *NEW)}).data
    data = old.build_data()
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = partial(L.Trainer, max_steps=1, accelerator="cpu", **silent)
    first = trainer()
    first.fit(task := old.build_task(data), data)
    first.save_checkpoint(path := tmp_path / CHECKPOINT)
    fit(old, tmp_path / "run")
    of_run = tmp_path / "run" / CHECKPOINT
    tasks = (task, Task.load_from_checkpoint(path), load_checkpoint(of_run), Task.load_from_checkpoint(of_run))
    for each, named in (*((each, None) for each in tasks), (old.build_task(data), path)):
        other = new.build()
        assert other.trained_symbols() != data.trained_symbols()
        trainer().validate(each, other, named, verbose=False, weights_only=True)
        assert other.trained_symbols() == data.trained_symbols()
