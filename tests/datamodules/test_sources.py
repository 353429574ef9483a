"""Sources: formats, splits, pieces, the cache, real corpora, and errors of one line."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from datamodules import BooksConfig, Corpus, DataError, FilesConfig, SourceConfig, StdlibConfig, WikitextConfig
from datamodules.core.documents import SPLITS
from datamodules.core.reading import OPEN_FILES, cut, locate
from datamodules.core.tokenizers import WordsConfig, encode_document
from datamodules.text.articles import articles
from datamodules.text.sources import named_split
from lit_transformers.config import ConfigError


def texts(corpus: Corpus) -> dict[str, bytes]:
    """Returns the text of every document of all splits that have documents, by the document's name."""
    documents: dict[str, bytes] = {}
    for split in SPLITS:
        try:
            documents |= {document.name: document.text for document in corpus.documents(split)}
        except DataError:
            continue
    return documents


def is_one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return "\n" not in str(error.value)


@given(text=st.text(max_size=200), piece=st.integers(8, 40))
def test_pieces_join_to_the_text_and_each_decodes(text: str, piece: int) -> None:
    pieces = list(cut(BytesIO(text.encode()), piece))
    assert b"".join(pieces) == text.encode()
    assert all(0 < len(part) <= piece for part in pieces)
    assert "".join(part.decode() for part in pieces) == text


@given(content=st.binary(max_size=300), piece=st.integers(8, 40), length=st.integers(0, 300))
def test_pieces_of_any_bytes_stop_at_the_length(content: bytes, piece: int, length: int) -> None:
    stream = BytesIO(content)
    assert b"".join(cut(stream, piece, length)) == content[:length]
    assert stream.read() == content[length:]


def test_a_piece_ends_at_a_line_end() -> None:
    assert list(cut(BytesIO(b"aaaa\nbbbb\ncccc\n"), 12)) == [b"aaaa\nbbbb\n", b"cccc\n"]


def test_the_standard_library_is_there_without_any_file_of_ours() -> None:
    corpus = StdlibConfig().build()
    documents = texts(corpus)
    assert b"class OrderedDict" in documents["collections/__init__.py"]
    assert not any("site-packages" in name or "/test/" in name or "_sysconfigdata" in name for name in documents)
    assert sum(map(len, documents.values())) > 5_000_000
    assert corpus.fingerprint.startswith("python-3.")
    sizes = {split: sum(len(document.text) for document in corpus.documents(split)) for split in SPLITS}
    assert sizes["train"] > 10 * sizes["validation"] > 0
    assert sizes["test"] > 0


def test_a_share_of_the_training_documents_leaves_those_that_are_held_out_as_they_are() -> None:
    whole, share = StdlibConfig().build(), StdlibConfig(training=0.25).build()
    assert list(share.documents("validation")) == list(whole.documents("validation"))
    assert list(share.documents("test")) == list(whole.documents("test"))
    names, all_names = ([document.name for document in corpus.documents("train")] for corpus in (share, whole))
    assert set(names) < set(all_names) and len(set(names)) / len(set(all_names)) == pytest.approx(0.25, abs=0.04)
    assert share.fingerprint != whole.fingerprint


def test_every_format_and_compression_gives_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain")
    (tmp_path / "b.py").write_bytes(b"python")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"zipped"))
    (tmp_path / "d.txt.bz2").write_bytes(bz2.compress(b"bzipped"))
    (tmp_path / "e.txt.xz").write_bytes(lzma.compress(b"xzipped"))
    (tmp_path / "f.jsonl").write_text('{"text": "row é"}\n\n{"text": "row 2"}\n')
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress(b'{"text": "packed row"}\n'))
    parquet.write_table(pyarrow.table({"text": ["cell 1", "cell 2"]}), tmp_path / "h.parquet")
    with tarfile.open(tmp_path / "i.tar.xz", "w:xz") as archive:
        for name, content in (("in/x.txt", b"member"), ("in/y.txt.gz", b""), ("in/skipped.csv", b"no")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (tmp_path / "skipped.png").write_bytes(b"no text")
    assert texts(FilesConfig(path=str(tmp_path)).build()) == {
        "a.txt": b"plain",
        "b.py": b"python",
        "c.txt.gz": b"zipped",
        "d.txt.bz2": b"bzipped",
        "e.txt.xz": b"xzipped",
        "f.jsonl:1": "row é".encode(),
        "f.jsonl:3": b"row 2",
        "g.jsonl.gz:1": b"packed row",
        "h.parquet:1": b"cell 1",
        "h.parquet:2": b"cell 2",
        "i.tar.xz/in/x.txt": b"member",
    }


def test_a_compressed_file_in_a_tar_is_unpacked_too(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        content = gzip.compress(b"twice packed")
        member = tarfile.TarInfo("x.txt.gz")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    assert texts(FilesConfig(path=str(tmp_path)).build()) == {"all.tar/x.txt.gz": b"twice packed"}


def test_the_column_is_a_choice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "text", "text": "no"}\n')
    parquet.write_table(pyarrow.table({"body": ["cell"]}), tmp_path / "b.parquet")
    assert texts(FilesConfig(path=str(tmp_path), column="body").build()) == {
        "a.jsonl:1": b"text",
        "b.parquet:1": b"cell",
    }


def test_a_long_document_becomes_pieces_named_by_their_place(tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(100))
    (tmp_path / "long.txt").write_bytes(content)
    pieces = texts(FilesConfig(path=str(tmp_path / "long.txt"), piece=100).build())
    assert b"".join(pieces.values()) == content
    assert list(pieces)[:2] == ["long.txt", "long.txt@94"]
    assert content[94:].startswith(pieces["long.txt@94"])


def test_a_document_keeps_its_split_when_others_come(tmp_path: Path) -> None:
    def splits(count: int) -> dict[str, str]:
        for number in range(count):
            (tmp_path / f"{number}.txt").write_text(f"text {number}")
        corpus = FilesConfig(path=str(tmp_path), validation=0.2, test=0.2).build()
        return {document.name: split for split in SPLITS for document in corpus.documents(split)}

    before, after = splits(40), splits(80)
    assert len(after) == 80
    assert before.items() <= after.items()
    counts = Counter(after.values())
    assert 6 <= counts["validation"] <= 26
    assert 6 <= counts["test"] <= 26


def test_folders_name_the_splits(tmp_path: Path) -> None:
    for name in ("train/a.txt", "valid/b.txt", "test/c.txt", "more.dev.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = FilesConfig(path=str(tmp_path), splits="folders").build()
    assert {split: [d.name for d in corpus.documents(split)] for split in SPLITS} == {
        "train": ["train/a.txt"],
        "validation": ["more.dev.txt", "valid/b.txt"],
        "test": ["test/c.txt"],
    }


@pytest.mark.parametrize("name", ["enwik", "enwik.bz2"])
def test_one_file_can_be_split_in_order_by_bytes(tmp_path: Path, name: str) -> None:
    content = bytes(number % 251 for number in range(10_000))
    (tmp_path / name).write_bytes(bz2.compress(content) if name.endswith("bz2") else content)
    corpus = FilesConfig(path=str(tmp_path / name), splits="order", piece=512).build()
    joined = {split: b"".join(document.text for document in corpus.documents(split)) for split in SPLITS}
    assert joined == {"train": content[:9000], "validation": content[9000:9500], "test": content[9500:]}


def test_only_a_changed_corpus_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("before")
    config = FilesConfig(path=str(tmp_path))
    fingerprint = config.build().fingerprint
    with monkeypatch.context() as context:
        context.setattr("datamodules.core.index._made_aside", None)
        assert config.build().fingerprint == fingerprint
    (tmp_path / "a.txt").write_text("afterwards")
    assert config.build().fingerprint != fingerprint


def test_the_fingerprint_does_not_depend_on_how_files_are_packed_in_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_text("same")
    first, second = (FilesConfig(path=str(tmp_path / place)).build().fingerprint for place in ("one", "two"))
    assert first == second


def test_relative_paths_start_at_lit_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("here")
    monkeypatch.setenv("LIT_DATA", str(tmp_path))
    assert texts(FilesConfig(path="corpus").build()) == {"a.txt": b"here"}


def test_an_article_starts_at_a_heading_between_blank_lines() -> None:
    wikitext = " \n = One = \n \n = formula = \n = = Part = = \n \n = Two = \n \n x \n"
    lines = wikitext.encode().splitlines(keepends=True)
    titled_texts = [(title, text.read()) for title, text in articles(lines)]
    assert [title for title, _ in titled_texts] == ["One", "Two"]
    assert b"".join(text for _, text in titled_texts) == b"".join(lines)


def test_a_process_that_reads_many_corpora_holds_few_of_them_open(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("the descriptors of a process are counted on Linux alone")
    corpora = []
    for number in range(3 * OPEN_FILES):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
        corpora.append(FilesConfig(path=str(tmp_path / f"{number}.txt")).build())
    before = len(list(descriptors.iterdir()))
    assert all(sum(map(corpus.count, SPLITS)) == 1 for corpus in corpora)
    assert len(list(descriptors.iterdir())) <= before + OPEN_FILES


@pytest.mark.parametrize("changed", ["short", "other words"])
def test_a_file_that_changed_behind_the_index_is_noticed(tmp_path: Path, changed: str) -> None:
    (tmp_path / "a.txt").write_text("long enough")
    config = FilesConfig(path=str(tmp_path), validation=0.0, test=0.0)
    documents = config.build().documents("train")
    assert len(list(documents)) == 1
    (tmp_path / "a.txt").write_text(changed)
    for read in (lambda: list(documents), lambda: documents[0]):
        with pytest.raises(DataError, match=r"a\.txt: has changed since it was indexed") as error:
            read()
        assert is_one_line(error)
    assert [document.text for document in config.build().documents("train")] == [changed.encode()]


@pytest.mark.slow
def test_wikitext_2_has_its_known_counts(real_data: Path) -> None:
    corpus = WikitextConfig(path="wikitext-2").build()
    assert [len(list(corpus.documents(split))) for split in SPLITS] == [600, 60, 60]
    words = WordsConfig().build(corpus.documents("train"))
    assert words.vocabulary.size == 33_278 + 1
    counts = [sum(len(encode_document(words, document)) for document in corpus.documents(split)) for split in SPLITS]
    assert counts == [2_088_628, 217_646, 245_569]


@pytest.mark.slow
def test_the_books_have_their_own_splits(real_data: Path) -> None:
    corpus = BooksConfig(path="gutenberg-books").build()
    books = [{d.name.partition("@")[0] for d in corpus.documents(split)} for split in SPLITS]
    assert [len(names) for names in books] == [75, 8, 8]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "empty, there is no text"),
        ("a.txt.gz", b"not gzip at all", "a.txt.gz: cannot be read, damaged"),
        ("a.txt.gz", gzip.compress(b"text " * 1000)[:-20], "a.txt.gz: cannot be read, damaged"),
        ("a.txt.xz", lzma.compress(b"text " * 1000)[:-20], "a.txt.xz: cannot be read, damaged"),
        ("a.txt.bz2", b"BZh9 broken", "a.txt.bz2: cannot be read, damaged"),
        ("a.tar", b"no tar, surely not one", "a.tar: cannot be read, damaged"),
        ("a.parquet", b"PAR1 broken", "a.parquet: damaged parquet"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl:2: not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: not a JSON object but list"),
        ("a.jsonl", b'{"txt": "x"}\n', "a.jsonl:1: no field 'text'; did you mean txt"),
        ("a.jsonl", b'{"text": 3}\n', "a.jsonl:1: 'text' holds int, not text"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: 'text' is not text that UTF-8 can write"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_are_one_line_that_names_them(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        FilesConfig(path=str(tmp_path / name)).build()
    assert says in str(error.value)
    assert is_one_line(error)


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"texts": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column 'text'; did you mean texts"):
        FilesConfig(path=str(tmp_path)).build()


def test_a_missing_path_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LIT_DATA", raising=False)
    with pytest.raises(DataError, match=r"^nowhere: no such file or folder \(LIT_DATA, .* is not set\)"):
        FilesConfig(path="nowhere").build()
    monkeypatch.setenv("LIT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="LIT_DATA is "):
        FilesConfig(path="nowhere").build()
    (tmp_path / "tokenizer.json").touch()
    assert locate("tokenizer.json", "tokenizer.path", ("LIT_WEIGHTS", "LIT_DATA")) == tmp_path / "tokenizer.json"


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"no text")
    with pytest.raises(DataError, match="empty, there is no text to read"):
        FilesConfig(path=str(tmp_path)).build()


def test_a_split_without_documents_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("only one")
    corpus = FilesConfig(path=str(tmp_path), validation=0.0, test=0.0).build()
    with pytest.raises(DataError, match=r"no document falls to the split 'validation'.*source.splits=order"):
        corpus.documents("validation")


def test_names_without_a_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert named_split("wnut17train.conll.xz") == "train" and named_split("test/a1train.txt") == "test"
    with pytest.raises(DataError, match=r"^a.txt: its name and folders name no split"):
        FilesConfig(path=str(tmp_path), splits="folders").build()


def test_rows_cannot_be_split_by_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x"}))
    with pytest.raises(DataError, match="cuts plain text by bytes"):
        FilesConfig(path=str(tmp_path), splits="order").build()


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write the cache .*; set LIT_CACHE") as error:
        FilesConfig(path=str(tmp_path / "a.txt")).build()
    assert is_one_line(error)


def test_a_failed_index_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt.gz").write_bytes(b"broken")
    with pytest.raises(DataError):
        FilesConfig(path=str(tmp_path / "a.txt.gz")).build()
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


def test_fractions_must_leave_something_to_train_on() -> None:
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        FilesConfig(path="x", validation=0.5, test=0.5)


def test_sources_are_made_from_plain_data() -> None:
    for kind in ("stdlib", "wikitext", "books"):
        assert SourceConfig.from_dict(kind).kind == kind
    assert SourceConfig.from_dict({"kind": "files", "path": "x"}) == FilesConfig(path="x")
    with pytest.raises(ConfigError, match="piece"):
        StdlibConfig(piece=10)
