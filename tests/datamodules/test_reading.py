"""Files as people and programs leave them, with hidden, linked, marked, repeated, quoted or endless content."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import socket
import stat
import tarfile
import zipfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from ablations.ablation import Ablation, Metric
from ablations.plan import Request, make_plan
from datamodules import (
    CataloguesConfig,
    Corpus,
    DataError,
    FilesConfig,
    JsonPairsConfig,
    LabelledRecordsConfig,
    LanguageDataConfig,
    ParallelConfig,
    RecordPairsConfig,
    ReviewsConfig,
)
from datamodules.core.archives import BROKEN_LINKS, DEVICES, HIDDEN, NESTED, REPLACED
from datamodules.core.documents import SPLITS, Split
from datamodules.core.index import IndexedCorpus
from datamodules.core.reading import LONGEST, require_regular
from datamodules.core.tokenizers import BytesConfig, PretrainedTokenizerConfig
from datamodules.labelled.stored_texts import StoredText
from datamodules.pairs.stored_pairs import Texts, texts_of
from datamodules.rows.phrases import PhrasesConfig
from datamodules.text.sources import FOLDER_LINKS
from lit_transformers.runs import RunConfig


def read_texts(corpus: Corpus) -> dict[str, str]:
    """Returns the texts of all splits by the names of documents."""
    assert isinstance(corpus, IndexedCorpus)
    splits = [split for split in SPLITS if corpus.count(split)]
    return {document.name: document.text.decode() for split in splits for document in corpus.documents(split)}


def corpus_of(path: Path, **fields: Any) -> IndexedCorpus:
    corpus = FilesConfig(path=str(path), **fields).build()
    assert isinstance(corpus, IndexedCorpus)
    return corpus


def pairs_of(path: Path, split: Split = "train", **fields: Any) -> list[Texts]:
    corpus = RecordPairsConfig(path=str(path), **fields).corpus()
    return [texts_of(document) for document in corpus.documents(split)] if corpus.count(split) else []


def write_tar(path: Path, *entries: tuple[str, bytes | str, bytes]) -> None:
    """Writes entries of a name, a content or the target of a link, and a type."""
    with tarfile.open(path, "w") as archive:
        for name, content, kind in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if isinstance(content, str):
                entry.linkname = content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


NAMES = ("a.txt", "sub/b.txt", "._a.txt", ".ipynb_checkpoints/a-checkpoint.txt", ".git/x.txt", "__MACOSX/c.txt",
         "sub/.trash/x.txt", ".DS_Store")  # fmt: skip


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
def test_hidden_files_are_left_out_and_counted(
    tmp_path: Path, packing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path if packing == "folder" else tmp_path / f"all.{packing}"
    if packing == "folder":
        for name in NAMES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name * 9)
    elif packing == "tar":
        write_tar(path, *((f"./{name}", name.encode() * 9, tarfile.REGTYPE) for name in NAMES))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name in NAMES:
                archive.writestr(name, name * 9)
    corpus = corpus_of(path, validation=0.0, test=0.0)
    assert [*read_texts(corpus).values()] == [name * 9 for name in NAMES[:2]]
    assert corpus.left_out == {HIDDEN: 5}
    data = LanguageDataConfig(source=FilesConfig(path=str(path), validation=0.0, test=0.0), segment_length=8)
    data.build().prepare_data()
    assert capsys.readouterr().err == "files: 5 hidden files left out\n"


def test_an_archive_is_read_as_unpacking_it_leaves_it(tmp_path: Path) -> None:
    file, hard, symbolic = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE
    write_tar(
        tmp_path / "all.tar",
        ("old.txt", b"old", file),
        ("kept.txt", "old.txt", hard),  # a file that is later unpacked over old.txt leaves it alone
        ("./old.txt", b"new", file),
        ("in/link.txt", "../old.txt", symbolic),
        ("blob", b"without a suffix", file),
        ("named.txt", "blob", hard),
        ("loop.txt", "loop.txt", symbolic),
        ("outside.txt", "/etc/passwd", symbolic),
        ("above.txt", "../../secret.txt", symbolic),
        ("pipe.txt", b"", tarfile.FIFOTYPE),
        ("inner.tar.gz", b"packed twice", file),
    )
    corpus = corpus_of(tmp_path / "all.tar")
    unpacked = {"kept.txt": "old", "old.txt": "new", "in/link.txt": "new", "named.txt": "without a suffix"}
    assert read_texts(corpus) == {f"all.tar/{name}": text for name, text in unpacked.items()}
    assert corpus.left_out == {REPLACED: 1, BROKEN_LINKS: 3, DEVICES: 1, NESTED: 1}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "a.txt")
        with pytest.warns(UserWarning, match="Duplicate name"):
            for text in ("first", "last"):
                archive.writestr("a.txt", text)
    assert read_texts(corpus_of(tmp_path / "all.zip")) == {"all.zip/link.txt": "last", "all.zip/a.txt": "last"}


def test_links_to_folders_are_counted_and_a_name_may_be_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("b")
    corpus = corpus_of(tmp_path)
    assert read_texts(corpus) == {"a.txt": "a", r"\udcff.txt": "b"} and corpus.left_out == {FOLDER_LINKS: 1}


MARK = "\ufeff"


def test_a_mark_of_utf_8_is_no_part_of_what_it_stands_before(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{MARK}grün")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(f"{MARK}b".encode()))
    (tmp_path / "c.jsonl").write_text(f'{MARK}{{"text": "c"}}')
    texts = read_texts(corpus_of(tmp_path))
    assert texts == {"a.txt": "grün", "b.txt.gz": "b", "c.jsonl:1": "c"}
    tables = {"csv": "source,target\na,x\n", "tsv": "source\ttarget\na\tx\n", "json": '{"source": "a", "target": "x"}'}
    for suffix, content in tables.items():
        (tmp_path / f"train.{suffix}").write_text(MARK + content)
        assert pairs_of(tmp_path / f"train.{suffix}") == [Texts("a", ("x",))]
    (tmp_path / "phrases").write_text(f"{MARK}city\tParis\ntown\tNew\u2028York\n")
    phrases = PhrasesConfig(path=str(tmp_path / "phrases"), types=("city", "town")).build(BytesConfig().build([]), {})
    assert phrases.types == {tuple(b" Paris"): 0, tuple(" New\u2028York".encode()): 1}


@pytest.mark.parametrize("name", ["a.txt", "train.csv", "train.jsonl", "train.json", "a.txt.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_named_with_the_way_out(tmp_path: Path, name: str, encoding: str) -> None:
    content = '{"source": "a", "target": "b"}\n'.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    upper = encoding.upper()
    with pytest.raises(DataError, match=f"{name}: is {upper}; convert it, as with: iconv -f {upper} -t UTF-8"):
        corpus_of(tmp_path) if ".txt" in name else pairs_of(tmp_path)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_packed_data_are_no_text_under_the_name_of_one(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.txt").write_bytes(pack(b"a text " * 99))
    with pytest.raises(DataError, match=rf"a.txt: holds no text, but packed data; call it a.txt{suffix}"):
        corpus_of(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"%PDF-1.7 ")
    with pytest.raises(DataError, match=r"a.txt: holds no text, but packed data; unpack it"):
        corpus_of(tmp_path)


DAY = datetime(2024, 1, 31, 12, 0, 0, 5, timezone(timedelta(hours=1)))
VALUES: dict[str, tuple[pyarrow.Array, str]] = {
    "bytes": (pyarrow.array(["grün".encode()]), "grün"),
    "large bytes": (pyarrow.array([b"a"], pyarrow.large_binary()), "a"),
    "bytes of a dictionary": (pyarrow.array([b"a"]).dictionary_encode(), "a"),
    "texts of a dictionary": (pyarrow.array(["a"]).dictionary_encode(), "a"),
    "large text": (pyarrow.array(["a"], pyarrow.large_string()), "a"),
    "date": (pyarrow.array([date(2024, 1, 31)]), "2024-01-31"),
    "time": (pyarrow.array([time(12, 30)]), "12:30:00"),
    "moment with a zone": (pyarrow.array([DAY], pyarrow.timestamp("us", "+01:00")), "2024-01-31 12:00:00.000005+01:00"),
    "moment": (pyarrow.array([DAY.replace(tzinfo=None)]), "2024-01-31 12:00:00.000005"),
    "decimal": (pyarrow.array([Decimal("1.50")]), "1.50"),
    "list of bytes": (pyarrow.array([[b"a", b"b"]]), "a b"),
    "list of dates": (pyarrow.array([[date(2024, 1, 31)]]), "2024-01-31"),
    "number": (pyarrow.array([1.5]), "1.5"),
    "truth": (pyarrow.array([True]), "true"),
}


def test_values_of_parquet_are_plain_text(tmp_path: Path) -> None:
    columns = {name: array for name, (array, _) in VALUES.items()}
    nested = pyarrow.array([{"day": date(2024, 1, 31), "name": b"a", "image": b"\xff"}])
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table(columns | {"target": ["t"], "nested": nested}), path)
    texts = {name: pairs_of(path, source=name)[0].source for name in VALUES}
    assert texts == {name: text for name, (_, text) in VALUES.items()}
    assert pairs_of(path, source="join(' ', [nested.day, to_string(nested.name)])")[0].source == "2024-01-31 a"
    assert read_texts(corpus_of(path, column="bytes")) == {"train.parquet:1": "grün"}
    for column in ("nested.image", "to_string(nested.image)"):
        with pytest.raises(DataError, match=r"train.parquet:1: .* bytes that are not UTF-8, and no text; correct"):
            pairs_of(path, source=column)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '["a", NaN]', "null"])
def test_a_number_that_is_none_is_no_text(tmp_path: Path, value: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"source": {value}, "target": "x"}}\n{{"source": "NaN", "target": "y"}}\n')
    with pytest.raises(DataError, match=r"train.jsonl:1: 'source' holds (NaN|-?Infinity|1e999|null), and no text; cor"):
        pairs_of(path)
    assert pairs_of(path, incomplete="leave_out") == [Texts("NaN", ("y",))], "a text may say so"
    if value != "null":
        with pytest.raises(DataError, match=r"train.jsonl:1: 'to_string\(source\)': .*, and no text"):
            pairs_of(path, source="to_string(source)")


def splits_of(texts: Callable[[Split], list[str]]) -> dict[str, set[str]]:
    """Returns the splits in which each text stands, however its lines end."""
    places: dict[str, set[str]] = {}
    for split in SPLITS:
        for text in texts(split):
            places.setdefault(text.replace("\r\n", "\n").rstrip("\n"), set()).add(split)
    return places


@pytest.mark.parametrize("kind", ["files", "jsonl", "records", "labelled", "reviews"])
def test_equal_texts_share_a_split_however_their_lines_end(tmp_path: Path, kind: str) -> None:
    texts = [f"text {number % 30}{end}more{end}" for end in ("\n", "\r\n") for number in range(60)]
    lines = [json.dumps({"text": text, "label": "yes", "spaces": " " * number}) for number, text in enumerate(texts)]
    path = tmp_path / "made.train.jsonl"
    path.write_text("".join(f"{line}\r\n" if place % 2 else f"{line}\n" for place, line in enumerate(lines)))
    fields: dict[str, Any] = {"path": str(path), "splits": "hash", "validation": 0.3, "test": 0.3}
    if kind == "files":
        corpus = FilesConfig(**fields).build()
    elif kind == "reviews":
        (tmp_path / "made.test.jsonl").write_text('{"text": "x", "label": "yes"}\n')
        corpus = ReviewsConfig(path=str(tmp_path), labels=("yes", "no"), held_out=0.5).build().corpus
    elif kind == "labelled":
        corpus = LabelledRecordsConfig(**fields, labels=("yes", "no")).corpus()
    else:
        pair_config = JsonPairsConfig if kind == "jsonl" else RecordPairsConfig
        corpus = pair_config(**fields, source="text", target="label").corpus()
    assert isinstance(corpus, IndexedCorpus)

    def read(split: Split) -> list[str]:
        contents = [document.text for document in corpus.documents(split)] if corpus.count(split) else []
        if kind in ("jsonl", "records"):
            return [json.loads(content)[0] for content in contents]
        if kind == "labelled":
            return [text for content in contents for text in StoredText.of(content).texts]
        return [content.decode().lstrip("\0") for content in contents]

    places = splits_of(read)
    places.pop("x", None)
    assert len(places) == 30 and all(len(splits) == 1 for splits in places.values())
    assert len(set.union(*places.values())) == (2 if kind == "reviews" else 3)
    assert corpus.messages == []


def test_texts_that_stand_in_two_splits_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, count, end in (("train", 6, "\n"), ("valid", 4, "\r\n"), ("test", 2, "\n")):
        (tmp_path / split).mkdir()
        for number in range(count):
            (tmp_path / split / f"{number}.txt").write_text(f"a text {number}\nand more{end}", newline="")
        (tmp_path / split / "own.txt").write_text(f"of {split}")
    source = FilesConfig(path=str(tmp_path), splits="folders")
    messages = "files: 4 of 5 texts of validation stand in train too; 2 of 3 texts of test stand in train too\n"
    for _ in range(2):  # also when it is read from the cache
        LanguageDataConfig(source=source, segment_length=8).build().prepare_data()
        assert capsys.readouterr().err == messages


def test_a_text_that_utf_8_cannot_write_is_named_whatever_decides_its_split(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n{"source": "\\ud800", "target": "b"}\n')
    for splits in ("folders", "hash"):
        for pair_config in (RecordPairsConfig, JsonPairsConfig):
            with pytest.raises(DataError, match=r"train.jsonl:2: holds a character that UTF-8 cannot write"):
                pair_config(path=str(path), splits=splits).corpus()  # type: ignore[arg-type]


def test_only_a_line_feed_ends_a_line_of_a_catalogue(tmp_path: Path) -> None:
    characters = "\u2028\u2029\x85\x0b\x0c\x1c\x1e"
    (tmp_path / "x.po").write_text(f'msgid "a{characters}b"\nmsgstr "c{characters}d"\n\nmsgid "One"\nmsgstr "Uno"\n')
    corpus = CataloguesConfig(path=str(tmp_path), validation=0.0, test=0.0).corpus()
    assert [texts_of(document) for document in corpus.documents("train")] == [
        Texts(f"a{characters}b", (f"c{characters}d",)),
        Texts("One", ("Uno",)),
    ]


CELLS = ['say "hi"', "tab\there", "two\nlines", "plain", '"', "it's"]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_with_tabs_that_a_program_has_quoted_is_read_without_its_quotes(
    tmp_path: Path, quoting: int, end: str
) -> None:
    with (tmp_path / "train.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
        writer.writerows([["source", "target"], *([cell, number] for number, cell in enumerate(CELLS))])
    assert [pair.source for pair in pairs_of(tmp_path / "train.tsv")] == CELLS
    as_they_are = r"train.tsv:(3: 3 columns, and the header has 2|2: no 'source'; did you mean \"source\"\?)"
    with pytest.raises(DataError, match=as_they_are):
        pairs_of(tmp_path / "train.tsv", quoting=False)


@pytest.mark.parametrize(
    "lines",
    [
        ['"Hello" she said'],
        ['"Hello"', "plain"],
        ['"I think', 'he said"'],
        ['say "hi"', '"a ""b"""'],
        ['"unended'],
    ],
)
def test_a_table_with_tabs_whose_quotes_are_marks_of_its_texts_keeps_them(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\n" + "".join(f"{line}\tx\n" for line in lines))
    assert [pair.source for pair in pairs_of(tmp_path / "train.tsv")] == lines
    (tmp_path / "train.csv").write_text('source,target\n"a",b"c\n')
    assert pairs_of(tmp_path / "train.csv", quoting=False) == [Texts('"a"', ('b"c',))]
    (tmp_path / "train.tsv").write_text('source\ttarget\n"a"\tb\n')
    assert pairs_of(tmp_path / "train.tsv", quoting=True) == [Texts("a", ("b",))]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "z.txt").symlink_to(os.devnull)
    with pytest.raises(DataError, match=r"z.txt: a device, and only regular files are read; copy"):
        corpus_of(tmp_path)
    (tmp_path / "z.txt").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.jsonl"))
        with pytest.raises(DataError, match=r"s.jsonl: a socket, and only regular files"):
            JsonPairsConfig(path=str(tmp_path)).corpus()
    (tmp_path / "s.jsonl").unlink()
    os.mkfifo(tmp_path / "train.en")
    (tmp_path / "train.de").write_text("a")
    os.mkfifo(tmp_path / "tokenizer.json")
    pipe = r": a named pipe, and only regular files are read"
    with pytest.raises(DataError, match=pipe):
        require_regular(tmp_path / "train.en")
    for read in (
        ParallelConfig(path=str(tmp_path)).corpus,
        FilesConfig(path=str(tmp_path / "train.en")).build,
        lambda: PretrainedTokenizerConfig(path=str(tmp_path / "tokenizer.json")).build([]),
    ):
        with pytest.raises(DataError, match=pipe):
            read()


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("train.jsonl", b'{"source": "a", "target": "b"}\n{"source": "%s", "target": "b"}\n', "train.jsonl:2: a line"),
        ("train.csv", b"source,target\na,b\n%s,b\n", "train.csv:3: a line"),
        ("train.csv", b'source,target\n"%s\n",b\n', "train.csv:5[0-9]: a cell"),
        ("train.tsv", b"source\ttarget\n%s\tb\n", "train.tsv:2: a line"),
        ("train.json.gz", b'{"source": "%s", "target": "b"}', "train.json.gz: a record"),
        ("train.parquet", b"", "train.parquet:2: a record"),
    ],
)
def test_a_line_or_record_that_is_too_long_is_refused_before_it_takes_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, place: str
) -> None:
    long = b"\n".join([b"a" * 9] * 60) if "cell" in place else b"a" * 600
    content = content.replace(b"%s", long)
    if name.endswith("parquet"):
        parquet.write_table(pyarrow.table({"source": ["a", long.decode()], "target": ["b", "b"]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    monkeypatch.setenv(LONGEST, "500")
    with pytest.raises(DataError, match=rf"{place}.* of more than 500 bytes; correct it, or set {LONGEST} to more"):
        pairs_of(tmp_path)
    monkeypatch.setenv(LONGEST, "700")
    assert pairs_of(tmp_path)
    monkeypatch.setenv(LONGEST, "much")
    with pytest.raises(DataError, match=rf"{LONGEST} is 'much' and no number of bytes"):
        FilesConfig(path=str(tmp_path), column="source").build() if name.endswith("l") else pairs_of(tmp_path, target=2)


def test_one_file_of_text_is_cut_in_order_within_no_character_and_the_plan_says_so(tmp_path: Path) -> None:
    path, text = tmp_path / "mine.txt", "äöü €𝄞\n" * 300
    path.write_text(text)
    for fields in ({}, {"validation": 0.123, "test": 0.217}, {"splits": "order", "validation": 0.17}):
        corpus = corpus_of(path, **fields)
        parts = [b"".join(document.text for document in corpus.documents(split)).decode() for split in SPLITS]
        assert "".join(parts) == text and [len(part) > 50 for part in parts] == [True] * 3
    by_default, in_order = FilesConfig(path=str(path)), FilesConfig(path=str(path), splits="order")
    assert by_default.build().fingerprint == in_order.build().fingerprint
    assert by_default.to_dict()["splits"] == "hash", "keys of configs that name no splits stay"
    (message,) = by_default.reading_messages()
    assert "mine.txt is one file of text and cut in order: the first 0.9 of it for training, the next 0.05" in message
    data = LanguageDataConfig(source=by_default, segment_length=8)
    study = Ablation(
        question="Is it said?",
        baseline=RunConfig(data=data),
        factors={"depth": {"4": {}, "2": {"model.depth": 2}}},
        metric=Metric("val/bpb", goal="minimize"),
    )
    assert f"files, {message}, " in make_plan("mine", study, Request()).plan.protocol
    assert in_order.reading_messages() == FilesConfig(path=str(tmp_path)).reading_messages() == []
