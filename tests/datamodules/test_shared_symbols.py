"""Processes encode the documents of a split once, and read the same batches after any damage to the store."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from forked import Forked
from test_language import rows
from tokenizers import Tokenizer as Model
from tokenizers import models, pre_tokenizers
from waiting import wait_for

from datamodules import LanguageData, LanguageDataConfig
from datamodules.core import shared_symbols
from datamodules.core.documents import Document, Limit, Shard
from datamodules.core.index import IndexedDocuments
from datamodules.core.loading import in_order
from datamodules.core.shared_symbols import SharedSymbols
from datamodules.core.tokenizers import BPE, Tokenizer, Words, encode_document
from datamodules.text import lanes
from datamodules.text.lanes import Lanes, LaneShape
from lit_transformers.batch import TextBatch

MakeDocuments = Callable[[Sequence[bytes]], IndexedDocuments]
WORDS = Words(["<unk>", "<eos>", *(str(number) for number in range(300))], "strict")
SHAPE = LaneShape(3, 16, 16, joined=False)
COUNT = 40
ENTRY = 24


@pytest.fixture
def documents(make_documents: MakeDocuments) -> IndexedDocuments:
    return make_documents([b" ".join(b"%d" % (n * 7 % 300) for n in range(i, 2 * i + 5)) for i in range(COUNT)])


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ordinals of the documents that this process encodes."""
    ordinals: list[int] = []

    def encode(tokenizer: Tokenizer, document: Document) -> Any:
        ordinals.append(int(Path(document.name).stem))
        return encode_document(tokenizer, document)

    monkeypatch.setattr(lanes, "encode_document", encode)
    return ordinals


def batches(documents: IndexedDocuments, folder: Path | None, training: bool = False) -> list[TextBatch]:
    store = None if folder is None else SharedSymbols(folder, WORDS.vocabulary)
    stream = documents.training(0) if training else documents.evaluation(Limit())
    return [*islice(in_order(Lanes(stream, WORDS, SHAPE, Shard(), store)), 100 if training else None)]


def is_whole(folder: Path) -> bool:
    store = SharedSymbols(folder, WORDS.vocabulary)
    return all(store.symbols(ordinal) is not None for ordinal in range(COUNT))


def _hold_the_first(folder: Path, documents: IndexedDocuments) -> None:
    """Encodes the first document once all others are entered."""
    store = SharedSymbols(folder, WORDS.vocabulary)
    assert store.claim(0)
    (folder / "claimed").touch()
    wait_for(lambda: all(store.length(ordinal) is not None for ordinal in range(1, COUNT)))
    symbols = [WORDS.vocabulary.boundary, *encode_document(WORDS, documents[0])]
    store.add([(0, np.array(symbols))])
    store.release()


def test_a_process_encodes_what_comes_later_while_another_one_has_what_it_needs(
    documents: IndexedDocuments, encoded: list[int], tmp_path: Path
) -> None:
    other = Forked(tmp_path / "output.txt", _hold_the_first, tmp_path, documents)
    other.until((tmp_path / "claimed").exists)
    read = batches(documents, tmp_path)
    other.finish()
    assert sorted(encoded) == list(range(1, COUNT))
    assert rows(read) == rows(batches(documents, None))
    encoded.clear()
    assert rows(batches(documents, tmp_path)) == rows(read) and not encoded


def test_a_process_that_is_stopped_does_not_stop_others(
    documents: IndexedDocuments, encoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Forked(tmp_path / "output.txt", _hold_the_first, tmp_path, documents)
    other.until((tmp_path / "claimed").exists)
    other.send(signal.SIGSTOP)
    monkeypatch.setattr(shared_symbols, "PATIENCE", 0.0)
    read = batches(documents, tmp_path, training=True)
    other.send(signal.SIGKILL)
    other.wait()
    assert sorted(encoded) == list(range(COUNT))
    assert rows(read) == rows(batches(documents, None, training=True))


def _fill_for_ever(folder: Path, documents: IndexedDocuments) -> None:
    """Encodes all documents again and again, a few at a time."""
    lanes.TOGETHER = 3
    while True:
        batches(documents, folder)
        (folder / "entries").unlink()


@pytest.mark.parametrize("entries", [1, 9, 30])
def test_what_a_killed_process_leaves_changes_no_batch(
    documents: IndexedDocuments, tmp_path: Path, entries: int
) -> None:
    other = Forked(tmp_path / "output.txt", _fill_for_ever, tmp_path, documents)
    path = tmp_path / "entries"
    other.until(lambda: path.exists() and path.stat().st_size >= entries * ENTRY)
    other.send(signal.SIGKILL)
    assert other.wait() == [-signal.SIGKILL]
    assert rows(batches(documents, tmp_path)) == rows(batches(documents, None))
    assert is_whole(tmp_path)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "the length of an entry": lambda folder: flip(folder / "entries", 5 * ENTRY + 4),
    "an entry half written": lambda folder: os.truncate(folder / "entries", 9 * ENTRY + 12),
    "a symbol": lambda folder: flip(folder / "1.symbols", 300),
    "symbols that are not written": lambda folder: os.truncate(folder / "1.symbols", 801),
    "no symbols": lambda folder: (folder / "1.symbols").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen_and_encoded_again(documents: IndexedDocuments, tmp_path: Path, damage: str) -> None:
    undamaged = rows(batches(documents, tmp_path))
    assert is_whole(tmp_path)
    DAMAGES[damage](tmp_path)
    assert not is_whole(tmp_path)
    assert rows(batches(documents, tmp_path)) == undamaged
    assert is_whole(tmp_path)


@pytest.fixture
def little_room() -> Iterator[None]:
    """Lets this process write no file of more than 500 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_changes_no_batch(
    documents: IndexedDocuments, tmp_path: Path, little_room: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows(batches(documents, tmp_path)) == rows(batches(documents, None))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}: cannot write the cache (File too large)") and "set LIT_CACHE to" in line


def test_a_cache_that_cannot_be_written_is_one_line_and_what_it_has_is_read(
    documents: IndexedDocuments,
    encoded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = rows(batches(documents, tmp_path))
    flip(tmp_path / "entries", 7 * ENTRY)
    encoded.clear()
    opened = shared_symbols._opened

    def refuse(path: Path, flags: int) -> Any:
        if flags != os.O_RDONLY:
            raise OSError(30, "Read-only file system")
        return opened(path, flags)

    monkeypatch.setattr(shared_symbols, "_opened", refuse)
    assert rows(batches(documents, tmp_path)) == whole and set(encoded) == {7}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}: cannot write the cache (Read-only file system)")


def config(path: Path, **changes: Any) -> LanguageDataConfig:
    source = {"kind": "files", "path": str(path), "splits": "folders"}
    plain = {"source": source, "tokenizer": "words", "segment_length": 8, "batch_size": 4, "documents": "stream"}
    return LanguageDataConfig.from_dict(plain).override(changes)


def write_corpus(folder: Path, order: Sequence[int]) -> None:
    """Writes texts to twelve files of each split, in an order that no tokenizer depends on."""
    for split, step in (("train", 1), ("validation", 3)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for file, number in enumerate(order):
            words = (f"{(number + step * place) % 40}" for place in range(5 + number))
            (folder / split / f"{file}.txt").write_text(" ".join(words) + "\n")


def read(data_config: LanguageDataConfig) -> list[Any]:
    data = LanguageData(data_config)
    return rows([*islice(data.train_dataloader(), 20), *data.val_dataloader()])


def test_data_read_their_own_symbols_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another tokenizer, another text at the same place, another split or a part of a document was read
    before."""
    write_corpus(tmp_path / "corpus", range(12))
    cut, fewer_words = {"evaluation.bytes": 40, "evaluation.last": "cut"}, {"tokenizer.minimum": 12}
    configs = [config(tmp_path / "corpus", **changes) for changes in (cut, {}, fewer_words)]
    alone = []
    for number, data_config in enumerate(configs):
        monkeypatch.setenv("LIT_CACHE", str(tmp_path / f"alone{number}"))
        alone.append(read(data_config))
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "shared"))
    assert [read(data_config) for data_config in configs] == alone and alone[0] != alone[1] != alone[2]
    write_corpus(tmp_path / "corpus", range(12)[::-1])
    changed = read(configs[1])
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "afterwards"))
    assert changed == read(configs[1]) != alone[1]


@pytest.mark.slow
def test_workers_and_epochs_encode_a_document_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: list[int]
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path / "corpus", range(12))
    from_workers = read(config(tmp_path / "corpus", workers=3))
    written = sum(path.stat().st_size for path in tmp_path.glob("cache/symbols/*/*.symbols"))
    symbols = sum(1 + 5 + number + 1 for number in range(12))
    assert written == 2 * 2 * symbols, "two bytes for each word, line end and boundary of both splits"
    assert read(config(tmp_path / "corpus")) == from_workers and not encoded


def _count_threads(path: Path) -> None:
    os.environ.pop("TOKENIZERS_PARALLELISM", None)
    model = Model(models.BPE({piece: number for number, piece in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer, before = BPE(model.to_str(), "strict"), psutil.Process().num_threads()
    tokenizer.encode(b"some text")
    tokenizer.encode_words(["some", "text"])
    path.write_text(f"{psutil.Process().num_threads() - before}")


def test_encoding_starts_no_threads(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", _count_threads, tmp_path / "threads").finish()
    assert (tmp_path / "threads").read_text() == "0"
