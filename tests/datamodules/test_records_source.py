"""Pairs and labels by columns of tables and paths in nested records; errors name the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from datamodules import DataError, LabelledRecordsConfig, PairDataConfig, RecordPairsConfig
from datamodules.core.documents import SPLITS, Split
from datamodules.pairs.stored_pairs import Texts, texts_of
from lit_transformers.config import ConfigError

QUESTIONS = [
    {"text": "Who?", "responses": [{"text": "She."}, {"text": "Her."}]},
    {"text": "Why?", "responses": [{"text": "Because."}]},
]
MEETING = {"minutes": "They met.", "questions": QUESTIONS}


def read_pairs(config: RecordPairsConfig, split: Split = "train") -> list[Texts]:
    corpus = config.corpus()
    return [texts_of(document) for document in corpus.documents(split)] if corpus.count(split) else []


def pairs_of(folder: Path, content: str, name: str = "train.tsv", **fields: Any) -> list[Texts]:
    (folder / name).write_text(content)
    return read_pairs(RecordPairsConfig(path=str(folder / name), **fields))


def test_columns_of_a_table_are_named_by_its_header_or_by_number(tmp_path: Path) -> None:
    expected = [Texts('a "b', ("x",)), Texts("c", ("y",))]
    with_header = 'id\tsource\ttarget\n1\ta "b\tx\n\n2\tc\ty\n'
    assert pairs_of(tmp_path, with_header) == expected
    assert pairs_of(tmp_path, with_header, header=True, source=2, target=3) == expected
    assert pairs_of(tmp_path, 'a "b\tx\tCC-BY\r\nc\ty\n', source=1, target=2) == expected
    assert pairs_of(tmp_path, 'x|a "b\ny|c\n', "train.txt", source=2, target=1, separator="|") == [
        Texts('a "b', ("x",)), Texts("c", ("y",)),
    ]  # fmt: skip
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"source\ttarget\nd\tz\n"))
    config = RecordPairsConfig(path=str(tmp_path / "dev.tsv.gz"))
    assert read_pairs(config, "validation") == [Texts("d", ("z",))]
    assert config.corpus().documents("validation").name(0) == "dev.tsv.gz:2"


def test_a_field_of_csv_in_quotes_holds_commas_lines_and_whole_documents(tmp_path: Path) -> None:
    long = "word " * 50_000
    text = f'source,target\n"a, ""b""\nc",x\n{long},"y"\n'
    assert pairs_of(tmp_path, text, "train.csv") == [Texts('a, "b"\nc', ("x",)), Texts(long, ("y",))]
    with pytest.raises(DataError, match=r"train.csv:3: no row of a table \(.*\); quote the field"):
        pairs_of(tmp_path, 'source,target\na,x\n"b,y\n', "train.csv")


def test_a_path_leads_into_nested_records_of_every_format(tmp_path: Path) -> None:
    fields = {"source": "questions[*].text", "target": "questions[*].responses[0].text"}
    joined = [Texts("Who? Why?", ("She.", "Because."))]
    assert pairs_of(tmp_path, json.dumps(MEETING), "train.jsonl", **fields) == joined
    assert pairs_of(tmp_path, json.dumps([MEETING]), "train.json", **fields) == joined
    parquet.write_table(pyarrow.Table.from_pylist([MEETING]), tmp_path / "train.parquet")
    assert read_pairs(RecordPairsConfig(path=str(tmp_path / "train.parquet"), **fields)) == joined
    lines = {"source": 'join(`"\\n"`, questions[*].text)', "target": "minutes"}
    assert pairs_of(tmp_path, json.dumps(MEETING), "train.jsonl", **lines) == [Texts("Who?\nWhy?", ("They met.",))]
    named = {"my text": "a", "b.c": "d", "b": {"c": "e"}}
    assert pairs_of(tmp_path, json.dumps(named), "train.jsonl", source="my text", target="b.c") == [Texts("a", ("d",))]


def test_items_of_a_list_are_pairs_of_their_own_and_share_a_split_and_what_is_around_them(tmp_path: Path) -> None:
    fields = {"records": "questions", "source": "[text, parent.minutes]", "target": "responses[*].text"}
    meetings = [MEETING | {"minutes": f"Meeting {number}."} for number in range(40)]
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(map(json.dumps, meetings)))
    config = RecordPairsConfig(path=str(path), splits="hash", validation=0.3, test=0.3, **fields)
    texts = {split: read_pairs(config, split) for split in SPLITS}
    assert Texts("Who? Meeting 7.", ("She.", "Her.")) in [pair for pairs in texts.values() for pair in pairs]
    meetings_of = [{pair.source.partition("? ")[2] for pair in texts[split]} for split in SPLITS]
    assert all(len(texts[split]) == 2 * len(names) > 0 for split, names in zip(SPLITS, meetings_of, strict=True))
    assert sum(map(len, meetings_of)) == 40 == len(set.union(*meetings_of))
    assert config.corpus().documents("train").name(1).endswith(":2")


def test_pairs_with_equal_sources_share_a_split(tmp_path: Path) -> None:
    text = "".join(f"s{number % 30}\tt{number}\n" for number in range(90))
    (tmp_path / "a.tsv").write_text(text)
    config = RecordPairsConfig(path=str(tmp_path), source=1, target=2, splits="hash", validation=0.3, test=0.3)
    sources = [{pair.source for pair in read_pairs(config, split)} for split in SPLITS]
    assert sum(map(len, sources)) == 30 and all(sources)


def faults() -> Iterator[tuple[str, str, dict[str, Any], str]]:
    yield "train.tsv", "source\ttraget\na\tx\n", {}, r"train.tsv:2: no 'target'; did you mean traget\? \(set the col"
    yield "train.tsv", "source\ttarget\na\n", {}, r"train.tsv:2 \(1 columns, and the header has 2\): no 'target'"
    yield (
        "train.tsv",
        "source\ttarget\na\tx\ty\n",
        {},
        r"train.tsv:2: 3 columns, and the header has 2; correct",
    )
    yield "train.tsv", "a\tx\nb\n", {"source": 1, "target": 2}, r"train.tsv:2: 1 columns, and none of number 2; correct"
    yield "train.tsv", "source\ttarget\na\t \n", {}, r"train.tsv:2: 'target' is empty; .*incomplete=leave_out"
    yield "train.tsv", "source\ttarget\n\t\n", {}, r"train.tsv:2: 'source' is empty"
    yield "train.tsv", "a\ta\n1\t2\n", {}, r"train.tsv:1: two columns have the same name; name columns by number"
    yield "train.tsv", "a\tx\n", {"header": False}, r"train.tsv:1: no object with names but a row without a header"
    yield "train.jsonl", "[1]\n", {}, r"train.jsonl:1: no object with names but a row|no object with names but"
    yield "train.jsonl", '{"source": "a", "target": {"b": 1}}', {}, r"train.jsonl:1: 'target' holds an object, not text"
    yield "train.jsonl", '{"source": "a", "target": null}', {}, r"train.jsonl:1: 'target' holds null, and no text"
    yield "train.jsonl", "{", {}, r"train.jsonl:1: not JSON"
    yield "train.jsonl", '{"a": 1}', {"records": "b"}, r"train.jsonl:1: no 'b'; there are: a \(set data.source.records"
    yield "train.dat", "a\tx\n", {}, r"train.dat: its name is of no records .* of a table set data.source.separator"


@pytest.mark.parametrize(("name", "content", "fields", "message"), [*faults()])
def test_a_line_that_is_no_pair_is_named_in_one_line(
    tmp_path: Path, name: str, content: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        pairs_of(tmp_path, content, name, **fields)
    assert "\n" not in str(error.value)


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"source,target\na,x\nb,\xff\n")
    with pytest.raises(DataError, match=r"train.csv:3: byte 2 of the line is not UTF-8"):
        read_pairs(RecordPairsConfig(path=str(tmp_path)))


def test_incomplete_records_are_left_out_and_counted_where_that_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\na\tx\nb\t\nc\n")
    (tmp_path / "train.jsonl").write_text('{"source": null, "target": "x"}')
    (tmp_path / "dev.tsv").write_text("source\ttarget\na\tx\n")
    source = RecordPairsConfig(path=str(tmp_path), incomplete="leave_out")
    assert read_pairs(source) == [Texts("a", ("x",))]
    PairDataConfig(source=source, tokenizer="bytes").build().prepare_data()  # type: ignore[arg-type]
    assert "3 records without a text left out when they were read" in capsys.readouterr().err
    misspelt = RecordPairsConfig(path=str(tmp_path), target="targt", incomplete="leave_out")
    with pytest.raises(DataError, match=r"none of 5 records has every text: .*no 'targt'; did you mean target\?"):
        read_pairs(misspelt)


def test_what_is_no_path_is_refused_before_a_file_is_read() -> None:
    with pytest.raises(ConfigError, match=r"target: 'questions\[\*' is neither a name nor a JMESPath"):
        RecordPairsConfig(path="none", target="questions[*")


def labelled(path: Path, **fields: Any) -> LabelledRecordsConfig:
    return LabelledRecordsConfig(path=str(path), labels=("good", "bad"), tokenizer="bytes", **fields)  # type: ignore[arg-type]


def test_a_text_and_its_label_are_columns_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('label,text\nbad,"dull, long"\ngood,fine\n')
    (tmp_path / "dev.csv").write_text("label,text\ngood,nice\n")
    examples = labelled(tmp_path).build()
    assert [examples.count(split) for split in SPLITS] == [2, 1, 1]  # there is no test, so it reads validation
    read = [examples.example("train", ordinal) for ordinal in range(2)]
    assert [example.label for example in read] == [1, 0]
    assert bytes(read[0].symbols[:-1].tolist()) == b"dull, long"
    assert examples.name("train", 0) == "train.csv:2" and labelled(tmp_path).description.labels.count == 2
    by_number = labelled(tmp_path, header=True, text=2, label=1).build()
    assert by_number.fingerprint == examples.fingerprint
    shorter = labelled(tmp_path, length=8).build()
    assert bytes(shorter.example("train", 0).symbols[:-1].tolist()) == b"dull, "
    assert shorter.fingerprint != examples.fingerprint


def test_a_tokenizer_is_learned_from_the_texts_of_training_without_their_labels(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,text\nbad,dull film\ngood,fine film\n")
    (tmp_path / "dev.csv").write_text("label,text\ngood,nice\n")
    config = labelled(tmp_path).override({"tokenizer": "characters"})
    assert len(config.built_tokenizer.encode(b"dull fine film")) == 14
    assert config.built_tokenizer.vocabulary.size < 20  # the bytes of labels, 0 and 1, are not among them


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,text\nugly,x\n", r"train.csv:2: the label 'ugly' is not in data.source.labels; there are: bad, good"),
        ("label,txt\nbad,x\n", r"train.csv:2: no 'text'; did you mean txt\?"),
        ("label,text\nbad\n", r"train.csv:2 \(1 columns, and the header has 2\): no 'text'"),
    ],
)
def test_a_line_without_a_text_or_a_label_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        labelled(tmp_path).build()


def test_splits_that_are_not_there_and_labels_that_are_none_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,text\nbad,x\n")
    with pytest.raises(
        DataError, match=r"no example in the split 'validation'; correct data.source.path or data.source.splits"
    ):
        labelled(tmp_path).build()
    with pytest.raises(ConfigError, match="labels need 2 or more different classes"):
        LabelledRecordsConfig(path="none", labels=("a", "a"))
