"""The hub source on a local folder that the same library reads, and its one line without a network."""

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from datamodules import (
    DataError,
    Documents,
    HubConfig,
    LanguageData,
    LanguageDataConfig,
    Limit,
    SourceConfig,
    WordsConfig,
)
from datamodules.core.documents import Document, Shard
from datamodules.core.learning import sampled
from datamodules.core.tokenizers import Tokenizer, encode_document
from datamodules.text import hub, lanes

EVERYTHING = Limit()


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    for split, count in (("train", 37), ("validation", 8), ("test", 5)):
        lines = (json.dumps({"text": f"{split} row {row} " + "x" * (row % 9)}) for row in range(count))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


Shards = Callable[..., Path]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Returns a function that writes texts into equal shards of a data set with a train split alone."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(texts: list[str], count: int, kind: str = "jsonl") -> Path:
        folder = tmp_path / f"{kind}-{count}"
        folder.mkdir()
        for shard in range(count):
            part = texts[len(texts) * shard // count : len(texts) * (shard + 1) // count]
            path = folder / f"train-{shard:05}.{kind}"
            if kind == "jsonl":
                path.write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
            else:
                parquet.write_table(pyarrow.table({"text": part}), path, row_group_size=7)
        return folder

    return write


def of_train(folder: Path, **fields: Any) -> HubConfig:
    """The config of a data set that has a train split alone."""
    return HubConfig(name=str(folder), validation=None, test=None, held_out=0.0, **fields)


def taken(documents: Documents, number: int, seed: int = 0) -> list[tuple[int, str]]:
    """The first documents of training, with their ordinals."""
    stream = documents.training(seed)
    return [(item[0], item[1].text.decode()) for _ in range(number) if (item := stream.take())]


def ordinals(documents: Documents, limit: Limit = EVERYTHING) -> list[int]:
    stream = documents.evaluation(limit)
    return [item[0] for item in iter(stream.take, None)]


@pytest.mark.slow
def test_rows_are_documents_in_order(data_set: Path) -> None:
    documents = HubConfig(name=str(data_set)).build().documents("validation")
    assert [document.text for document in documents][:2] == [b"validation row 0 ", b"validation row 1 x"]
    assert documents.name(1) == f"{data_set}:validation:2"


def test_an_evaluation_is_complete_up_to_its_limit(data_set: Path) -> None:
    documents = HubConfig(name=str(data_set)).build().documents("validation")
    assert ordinals(documents) == list(range(8))
    assert ordinals(documents, Limit(documents=5)) == list(range(5))
    stream = documents.evaluation(Limit(bytes=20, cut=True))
    assert [item[1].text for item in iter(stream.take, None)] == [b"validation row 0 ", b"val"]


def test_a_training_pass_gives_every_row_once_in_an_order_of_its_own(data_set: Path) -> None:
    documents = HubConfig(name=str(data_set), window=4).build().documents("train")
    expected = sorted(document.text for document in documents)
    stream = documents.training(0)
    passes = []
    for _ in range(2):
        items = [stream.take() for _ in range(37)]
        passes.append([item[1].text for item in items if item])
        assert sorted(passes[-1]) == expected
    assert passes[0] != passes[1]


@pytest.mark.parametrize(("kind", "count"), [("jsonl", 1), ("jsonl", 6), ("parquet", 2)])
def test_an_epoch_gives_every_document_once_and_seeds_and_epochs_give_other_orders(
    shards: Shards, kind: str, count: int
) -> None:
    texts = [f"row {number}" for number in range(100)]
    documents = of_train(shards(texts, count, kind), buffer=16).build().documents("train")
    orders = [taken(documents, 200, seed) for seed in (0, 1)]
    epochs = [order[start : start + 100] for order in orders for start in (0, 100)]
    assert all(sorted(text for _, text in epoch) == sorted(texts) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4 and taken(documents, 200) == orders[0]
    assert all(dict(epoch) == dict(epochs[0]) for epoch in epochs), "an ordinal names the same document in all epochs"
    assert len({number for number, _ in epochs[0]}) == 100


def epochs_of(config: HubConfig, count: int) -> list[list[str]]:
    """The documents of two epochs of each of two seeds."""
    orders = [[text for _, text in taken(config.build().documents("train"), 2 * count, seed)] for seed in (0, 1)]
    return [order[start : start + count] for order in orders for start in (0, count)]


def test_training_shuffles_shards_by_seed_and_epoch(shards: Shards) -> None:
    """A buffer of one document shuffles nothing."""
    epochs = epochs_of(of_train(shards([f"row {number}" for number in range(40)], 10), buffer=1), 40)
    assert len({tuple(epoch[:4]) for epoch in epochs}) == 4


def test_a_buffer_is_shuffled_by_seed_and_epoch(shards: Shards) -> None:
    """One shard has no order."""
    epochs = epochs_of(of_train(shards([f"row {number}" for number in range(40)], 1), buffer=100), 40)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_training_mixes_shards_and_shuffles_a_buffer_of_their_documents(shards: Shards, kind: str) -> None:
    documents = of_train(shards([f"{number}" for number in range(400)], 8, kind), buffer=40).build().documents("train")
    places = [int(text) for _, text in taken(documents, 400)]
    first = {place // 50 for place in places[:40]}
    assert len(first) >= 3, "the first buffer is of several shards"
    assert sum(abs(place - number) for number, place in enumerate(places)) / 400 > 80, "a random order has 133"
    assert sorted(places[:40]) != places[:40]


@pytest.mark.parametrize("many", [False, True], ids=["few_files", "many_files"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_stream_resumes_at_any_document(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, kind: str, many: bool
) -> None:
    """Over two epochs, with pieces of long documents and a share of them held out; with many files, the row groups of
    one are known when it is opened."""
    if many:
        monkeypatch.setattr(hub, "FEW_SHARDS", 2)
    texts = [f"row {number} " + "x" * (number % 5) * 40 for number in range(120)]
    config = of_train(shards(texts, 6, kind), buffer=11, piece=100).override({"held_out": 0.2})
    documents = config.build().documents("train")
    count = len([*documents])
    stream, states, items = documents.training(3), list[str](), list[Any]()
    for _ in range(2 * count):
        states.append(json.dumps(stream.state()))
        items.append(stream.take())
    assert sorted(items[:count]) == sorted(items[count:]) and items[:count] != items[count:]
    assert max(map(len, states)) < 300, "a state holds no text"
    resumed = documents.training(3)
    for stop in random.Random(0).sample(range(2 * count - 5), 25):
        fresh = documents.training(3)
        for stream in (fresh, resumed):
            stream.go_to(json.loads(states[stop]))
            assert [stream.take() for _ in range(15)][: 2 * count - stop] == items[stop : stop + 15]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [Shard(), Shard(1, 2)], ids=["alone", "second_rank"])
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_shuffled_shards_resume_on_any_ranks_and_workers(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, rank: Shard, workers: int
) -> None:
    """Random stops within two epochs; each batch of a rank is its rows of the batch that one process makes."""
    folder = shards([f"row {number} " + "x" * (number % 9) for number in range(60)], 5)
    config = LanguageDataConfig(source=of_train(folder, buffer=7), segment_length=16, batch_size=4)
    alone = list(islice(LanguageData(config).train_dataloader(), 40))
    monkeypatch.setattr(LanguageData, "rank", lambda data: rank)
    data = LanguageData(config.override({"workers": workers}))
    for stop in (0, *random.Random(workers).sample(range(1, 35), 2)):
        data._cursor = alone[stop - 1].cursor if stop else ""
        batches = islice(data.train_dataloader(), 40 - stop)
        for whole, batch in zip(alone[stop:], batches, strict=True):
            assert torch.equal(whole.inputs[rank.number :: rank.total], batch.inputs)


def test_a_position_in_another_order_is_refused(shards: Shards) -> None:
    folder = shards([f"row {number}" for number in range(30)], 3)
    shuffled, in_order = (of_train(folder, window=window).build().documents("train") for window in (None, 5))
    for documents, other, window in ((shuffled, in_order, "to its old value"), (in_order, shuffled, "to null")):
        with pytest.raises(DataError, match=f"position is one in .*set data.source.window {window}.*start anew"):
            documents.training(0).go_to(other.training(0).state())
    with pytest.raises(DataError, match=r"position is one in buffers of 9; set data\.source\.buffer"):
        shuffled.training(0).go_to(shuffled.training(0).state() | {"most": 9})
    with pytest.raises(DataError, match="has 3 shards, and the checkpoint's position is one of 4"):
        shuffled.training(0).go_to(shuffled.training(0).state() | {"shards": 4})


def test_a_config_that_names_the_window_keeps_its_order(shards: Shards) -> None:
    """Records name all fields: ``window`` was the only one of the order before."""
    texts = [f"row {number}" for number in range(30)]
    stored = {"kind": "hub", "name": str(shards(texts, 3)), "window": 8, "validation": None, "test": None}
    documents = SourceConfig.from_dict(stored | {"held_out": 0.0}).build().documents("train")
    order = np.random.default_rng([0, 0, 0, 0]).permutation(8)
    assert [text for _, text in taken(documents, 8)] == [texts[place] for place in order]
    assert HubConfig(name="set").window is None


ENGLISH = "Two young men are outside near many bushes while a dog runs through the green grass."
CZECH = "Dva mladí muži jsou venku poblíž mnoha keřů, zatímco pes běží zelenou trávou přes louku."


def sentences(text: str, count: int) -> list[str]:
    """Sentences of the words of a text in random orders."""
    words, drawn = text.split(), random.Random(0)
    return [" ".join(drawn.sample(words, 12)) for _ in range(count)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (sentences(ENGLISH, 300) + sentences(CZECH, 300), "by language or another kind of text"),
        (["x y " * (5 + number // 10) for number in range(600)], "sorted by length, from about 32 to about 2"),
    ],
)
def test_sorted_documents_are_noticed_where_they_are_not_shuffled(
    shards: Shards, texts: list[str], message: str
) -> None:
    for folder, window, way_out in (
        (shards(texts, 2), 1000, "set data.source.window=null"),
        (shards(texts, 1), None, "divide them into 16 files"),
    ):
        [found] = of_train(folder, window=window).build().messages
        assert message in found and way_out in found and "\n" not in found
    shuffled = random.Random(0).sample(texts, len(texts))
    assert of_train(shards(shuffled, 3), window=1000).build().messages == []
    assert of_train(shards(texts, 20)).build().messages == [], "training shuffles the shards"
    assert message in of_train(shards(texts, 18), window=9).build().messages[0]


@pytest.mark.parametrize("count", [1, 20])
def test_a_tokenizer_learns_from_all_parts_of_a_stream(shards: Shards, count: int) -> None:
    texts = [f"{letter}{number:04} " * 20 for letter in "ab" for number in range(1000)]
    documents = of_train(shards(texts, count)).build().documents("train")
    sample = [*sampled(documents, 30_000)]
    size = sum(len(document.text) for document in sample)
    assert 20_000 < size < 40_000 and 0.3 < sum(d.text.startswith(b"a") for d in sample) / len(sample) < 0.7
    assert len({document.text for document in sample}) == len(sample)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_training_resumes_with_exactly_the_next_batch(data_set: Path, workers: int) -> None:
    config = LanguageDataConfig(
        source=HubConfig(name=str(data_set), window=5), segment_length=8, batch_size=3, workers=workers
    )
    data = LanguageData(config)
    batches = list(islice(data.train_dataloader(), 60))
    for stop in (1, 20, 41):
        data._cursor = batches[stop - 1].cursor
        resumed_batches = list(islice(data.train_dataloader(), 60 - stop))
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(resumed_batches, batches[stop:], strict=True))


def test_a_rank_encodes_a_row_of_another_one_only_where_nobody_has(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "lengths"))
    encoded: list[str] = []

    def encode(tokenizer: Tokenizer, document: Document) -> Any:
        encoded.append(document.name)
        return encode_document(tokenizer, document)

    monkeypatch.setattr(lanes, "encode_document", encode)
    source = HubConfig(name=str(data_set))
    config = LanguageDataConfig(source=source, tokenizer=WordsConfig(), segment_length=32, batch_size=4)
    shares: list[list[torch.Tensor]] = []
    for rank in (0, 1):
        encoded.clear()
        monkeypatch.setattr(LanguageData, "rank", lambda data, rank=rank: Shard(rank, 2))
        shares.append([batch.inputs for batch in islice(LanguageData(config).train_dataloader(), 8)])
        assert len(set(encoded)) == len(encoded) and (len(encoded) == 32 if rank == 0 else len(encoded) == 16)
    monkeypatch.setattr(LanguageData, "rank", lambda data: Shard())
    for alone, first, second in zip(LanguageData(config).train_dataloader(), *shares, strict=False):
        assert torch.equal(alone.inputs[0::2], first) and torch.equal(alone.inputs[1::2], second)


def test_a_missing_split_is_held_out_of_the_train_split(data_set: Path) -> None:
    corpus = HubConfig(name=str(data_set), validation=None, held_out=0.3).build()
    train, validation = ({d.text for d in corpus.documents(split)} for split in ("train", "validation"))
    assert train and validation and not train & validation
    assert len(train | validation) == 37
    assert len(list(corpus.documents("test"))) == 5


def test_rows_of_wikitext_are_lines_of_articles(tmp_path: Path) -> None:
    lines = ["", " = One = ", "", "text", " = not a heading = ", "more", "", " = Two = ", "", "text", ""]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    documents = HubConfig(name=str(tmp_path), rows="wikitext", validation=None, test=None, held_out=0.0).build()
    first, second = documents.documents("train")
    assert first.text == b"\n = One = \n\ntext\n = not a heading = \nmore\n\n"
    assert second.text == b" = Two = \n\ntext\n\n"


def test_articles_resume_at_an_article(tmp_path: Path) -> None:
    lines = [line for number in range(9) for line in ("", f" = {number} = ", "", f"text {number}")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    config = HubConfig(name=str(tmp_path), rows="wikitext", validation=None, test=None, held_out=0.0, window=2)
    documents = config.build().documents("train")
    stream = documents.training(0)
    states, items = [], []
    for _ in range(20):
        states.append(stream.state())
        items.append(stream.take())
    for place in (0, 3, 8, 9, 14):
        fresh = documents.training(0)
        fresh.go_to(json.loads(json.dumps(states[place])))
        assert [fresh.take() for _ in range(6)] == items[place : place + 6]


def test_the_fingerprint_follows_the_content(data_set: Path) -> None:
    fingerprint = HubConfig(name=str(data_set)).build().fingerprint
    assert HubConfig(name=str(data_set)).build().fingerprint == fingerprint
    (data_set / "train.jsonl").write_text(json.dumps({"text": "other"}) + "\n")
    assert HubConfig(name=str(data_set)).build().fingerprint != fingerprint


def test_a_wrong_column_names_the_nearest(data_set: Path) -> None:
    with pytest.raises(DataError, match="no column 'txt'; did you mean text"):
        next(iter(HubConfig(name=str(data_set), column="txt").build().documents("train")))


def test_a_wrong_split_is_one_line(data_set: Path) -> None:
    with pytest.raises(DataError, match="Bad split") as error:
        next(iter(HubConfig(name=str(data_set), train="training").build().documents("train")))
    assert "\n" not in str(error.value)


def test_without_a_network_there_is_one_line_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"^hub data set nobody/nothing: cannot be read .*source=stdlib") as error:
        HubConfig(name="nobody/nothing").build()
    assert "\n" not in str(error.value)
