"""The hub source on a local folder that the same library reads, and its one line without a network."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import DataError, Documents, HubConfig, LanguageData, LanguageDataConfig, Limit, WordsConfig
from datamodules.core.documents import Document, Shard
from datamodules.core.tokenizers import Tokenizer, encode_document
from datamodules.text import lanes

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
