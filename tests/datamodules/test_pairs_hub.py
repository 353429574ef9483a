"""Pairs of the hub, from local folders that the same library reads; and one line without a network."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datamodules import DataError, HubPairsConfig, PairDataConfig
from datamodules.core.documents import SPLITS, Split
from datamodules.pairs.stored_pairs import Texts, texts_of
from lit_transformers.config import ConfigError

COUNTS = {"train": 60, "validation": 8, "test": 5}


def record(layout: str, split: str, row: int) -> dict[str, Any]:
    if layout == "wmt14":
        return {"translation": {"de": f"{split} Satz {row}", "en": f"{split} sentence {row}"}}
    if layout == "multi30k":
        return {"en": f"{split} sentence {row}", "de": f"{split} Satz {row}"}
    target = "highlights" if layout == "cnn_dailymail" else "abstract"
    return {"article": f"{split} article {row} " + "long " * 50, target: f"{split} short {row}", "id": str(row)}


@pytest.fixture
def data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with one data set for every known layout, named as on the hub."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for layout in ("wmt14", "multi30k", "cnn_dailymail", "arxiv-summarization"):
        (tmp_path / layout).mkdir()
        for split, count in COUNTS.items():
            lines = (json.dumps(record(layout, split, row)) + "\n" for row in range(count))
            (tmp_path / layout / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


def local_source(folder: Path, **changes: Any) -> HubPairsConfig:
    """Returns the source of a local folder, whose subset is "default", regardless of its name on the hub."""
    return HubPairsConfig(name=str(folder), subset="default").override(changes)


def read_pairs(config: HubPairsConfig, split: Split = "train") -> list[Texts]:
    corpus = config.corpus()
    return [texts_of(document) for document in corpus.documents(split)] if corpus.count(split) else []


@pytest.mark.parametrize(
    ("layout", "languages", "expected"),
    [
        ("wmt14", ("en", "de"), Texts("validation sentence 1", ("validation Satz 1",))),
        ("multi30k", None, Texts("validation sentence 1", ("validation Satz 1",))),
        ("cnn_dailymail", None, Texts("validation article 1 " + "long " * 50, ("validation short 1",))),
        ("arxiv-summarization", None, Texts("validation article 1 " + "long " * 50, ("validation short 1",))),
    ],
)
def test_known_layouts_need_a_name_alone(data_sets: Path, layout: str, languages: Any, expected: Texts) -> None:
    config = local_source(data_sets / layout)
    assert [config.corpus().count(split) for split in SPLITS] == [60, 8, 5]
    assert read_pairs(config, "validation")[1] == expected and config.languages == languages
    assert config.corpus().documents("test").name(2) == f"{data_sets / layout}:test:3"
    assert config.corpus().fingerprint.startswith("hub-")


def test_columns_may_be_named_and_turned_round(data_sets: Path) -> None:
    config = local_source(data_sets / "wmt14", source="translation.de", target="translation.en")
    assert read_pairs(config)[0] == Texts("train Satz 0", ("train sentence 0",)) and config.languages == ("de", "en")
    assert config.corpus().fingerprint != local_source(data_sets / "wmt14").corpus().fingerprint


def test_a_path_leads_into_nested_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    questions = [{"text": text, "responses": [{"text": f"to {text}"}]} for text in ("Who?", "Why?")]
    (tmp_path / "nested").mkdir()
    for split in SPLITS:
        (tmp_path / "nested" / f"{split}.jsonl").write_text(json.dumps({"questions": questions, "id": 1}) + "\n")
    paths = {"source": "questions[*].text", "target": "questions[0].responses[0].text"}
    config = HubPairsConfig(name=str(tmp_path / "nested"), subset="default", **paths)
    assert read_pairs(config) == [Texts("Who? Why?", ("to Who?",))]
    several = HubPairsConfig(name=config.name, subset="default", source="[id, questions[1].text]", target="id")
    assert read_pairs(several) == [Texts("1 Why?", ("1",))]


def test_what_the_hub_does_not_split_is_held_out(data_sets: Path) -> None:
    config = local_source(data_sets / "wmt14", validation=None, held_out=0.3)
    train, validation = ({texts.source for texts in read_pairs(config, split)} for split in ("train", "validation"))
    assert train and validation and not train & validation and len(train | validation) == 60
    assert len(read_pairs(config, "test")) == 5


def test_the_first_pairs_are_enough_where_so_many_are_asked_for(data_sets: Path) -> None:
    config = local_source(data_sets / "wmt14", pairs=7)
    assert [config.corpus().count(split) for split in SPLITS] == [7, 7, 5]


def test_pairs_of_the_hub_are_trained_on_and_resumed(data_sets: Path) -> None:
    config = PairDataConfig(source=local_source(data_sets / "wmt14"), tokens_per_batch=256, window=16)
    batches = list(islice(config.build().train_dataloader(), 20))
    stream = config.build().training().batches(batches[11].cursor)
    assert [batch.example.tolist() for batch in islice(stream, 8)] == [batch.example.tolist() for batch in batches[12:]]
    assert config.build().checkpoint_metadata()["languages"] == ["en", "de"]


def test_a_wrong_column_names_the_nearest(data_sets: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'artical'; did you mean article\?"):
        read_pairs(local_source(data_sets / "cnn_dailymail", source="artical"))
    with pytest.raises(DataError, match=r"train:1: no 'translation.dee'; did you mean .*de.* \(set data.source.source"):
        read_pairs(local_source(data_sets / "wmt14", target="translation.dee"))
    with pytest.raises(DataError, match=r"train:1: 'translation' holds an object, not text"):
        read_pairs(local_source(data_sets / "wmt14", target="translation"))


def test_an_unknown_layout_asks_for_its_columns() -> None:
    with pytest.raises(ConfigError, match="the columns of someone/else are not known; set source, such as source=tr"):
        HubPairsConfig(name="someone/else")
    assert HubPairsConfig(name="wmt/wmt14").layout == HubPairsConfig().layout
    with pytest.raises(ConfigError, match="leaves nothing to train on"):
        HubPairsConfig(held_out=0.6, test=None)


def test_a_missing_set_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match=r"cannot be read .* check its name, .* the network, .*source=parallel"
    ) as error:
        read_pairs(HubPairsConfig(name="no-such-owner/wmt14"))
    assert "\n" not in str(error.value)
