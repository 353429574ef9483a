"""The texts that a tokenizer learns from: a sample of all parts, the first documents, or all; and lines of progress."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import BPEConfig, CharactersConfig, Document, TokenizerConfig, WordPieceConfig, WordsConfig
from datamodules.core import learning, preparing
from datamodules.core.documents import thinned
from datamodules.core.index import IndexedDocuments
from datamodules.core.learning import TextsWithin, WordCounts, sampled
from datamodules.core.tokenizers import Tokenizer, cached_tokenizer, learned_texts

MakeDocuments = Callable[[Sequence[bytes]], IndexedDocuments]
PUBLISHED = Path(__file__).parents[2] / "published"


def words(number: int, letters: str, seed: int) -> bytes:
    """A text of random words."""
    random = np.random.default_rng(seed)
    return b" ".join("".join(random.choice([*letters], 4)).encode() for _ in range(number))


@pytest.mark.parametrize(
    "config", [BPEConfig(size=300, sample_bytes=8000), WordPieceConfig(size=60, sample_bytes=8000)]
)
def test_pieces_are_learned_from_all_parts_of_a_corpus(make_documents: MakeDocuments, config: TokenizerConfig) -> None:
    """The second half is in another alphabet; who learns from the first documents alone does not know it."""
    first, second = ([words(40, letters, seed) for seed in range(100)] for letters in ("abcd", "wxyz"))
    documents = make_documents([*first, *second])
    everything, sample = (config.override(change).build(documents) for change in ({"sample_bytes": 10**9}, {}))
    beginning = config.override({"train_bytes": 8000}).build(documents)
    lengths = [len(tokenizer.encode(second[0])) for tokenizer in (everything, sample)]
    assert lengths[1] <= 1.1 * lengths[0]
    if config.kind == "bpe":
        assert len(beginning.encode(second[0])) > 1.5 * lengths[1]
    else:
        assert beginning.unknown in beginning.encode(second[0]) and sample.unknown not in sample.encode(second[0])


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ([100] * 2000, 20),
        ([200_000, 100, 400_000, 50_000], 20),
        ([20_000, 100, 40_000], 2),
        ([10] * 400 + [50_000] * 10, 20),
    ],
)
def test_every_byte_has_the_same_chance_to_be_learned_from(
    make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, sizes: list[int], part: int
) -> None:
    """Each word of a text is its own place; a tenth of the sample is drawn from each tenth of the corpus."""
    total, texts, place = sum(sizes), list[bytes](), 0
    for size in sizes:
        numbers = [f"{number:07d}" for number in range(place // 8, (place + size) // 8 + 1)]
        texts.append(" ".join(numbers).encode()[:size])
        place += size
    documents = make_documents(texts)
    monkeypatch.setattr(learning, "SPREAD", 500)
    monkeypatch.setattr(learning, "PART", 128)
    drawn, bytes_drawn = np.zeros(10), 0
    for seed in range(20):
        monkeypatch.setattr(learning, "SEED", seed)
        for document in sampled(documents, total // part):
            bytes_drawn += len(document.text)
            for number in re.findall(rb"\d{7}", document.text):
                drawn[min(int(number) * 80 // total, 9)] += 1
    assert bytes_drawn / 20 == pytest.approx(total // part, rel=0.1)
    assert drawn / drawn.sum() == pytest.approx(np.full(10, 0.1), abs=0.02)


def test_only_what_is_drawn_is_read(make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, read = make_documents([words(10, "ab", seed) for seed in range(3000)]), list[int]()
    whole = IndexedDocuments.__getitem__
    monkeypatch.setattr(IndexedDocuments, "__getitem__", lambda self, n: (read.append(n), whole(self, n))[1])
    size = sum(len(document.text) for document in sampled(documents, 60_000))
    assert 50_000 < size < 70_000 and len(read) < 1500
    assert read == sorted(set(read)) and np.histogram(read, 4, (0, 3000))[0].min() > 200


def test_a_corpus_that_is_no_larger_than_the_sample_is_learned_whole_and_in_order(
    make_documents: MakeDocuments,
) -> None:
    documents = make_documents([words(9, "abc", seed) for seed in range(50)])
    assert [*sampled(documents, 10**6)] == [*documents]


def test_a_part_of_a_long_text_breaks_no_word_and_no_character(make_documents: MakeDocuments) -> None:
    spaced = " ".join(["žluťoučký"] * 40_000).encode()
    for text in (spaced, spaced.replace(b" ", b"")):
        for document in sampled(make_documents([text] * 2), 20_000):
            decoded = document.text.decode()
            assert text is not spaced or set(decoded.split()) == {"žluťoučký"}


def test_texts_within_documents_are_sampled_with_them(make_documents: MakeDocuments) -> None:
    pairs = [json.dumps([f"s{number} " * 30, f"t{number} " * 30]).encode() for number in range(3000)]

    def targets(document: Document) -> Iterator[Document]:
        yield Document(document.name, json.loads(document.text)[1].encode())

    texts = TextsWithin(make_documents(pairs), targets)
    assert len([*texts]) == 3000
    drawn = [*sampled(texts, 30_000)]
    assert not any(b"s" in document.text for document in drawn)
    assert 50 < len(drawn) < 200


def test_what_can_only_be_passed_over_is_thinned_with_equal_chances() -> None:
    documents = [Document(str(number), b"x" * 100) for number in range(5000)]
    kept = [int(document.name) for document in thinned(iter(documents), 50_000, 0)]
    assert kept == sorted(kept) and 400 < len(kept) < 600
    assert np.histogram(kept, 5, (0, 5000))[0].min() > 60
    assert [*thinned(documents, 500_000, 0)] == documents


def test_words_are_counted_in_bounded_memory_and_as_in_memory(tmp_path: Path) -> None:
    text = words(3000, "abcdé", 0).decode().split()
    counts = WordCounts(tmp_path, held=50)
    for start in range(0, len(text), 100):
        counts.add(text[start : start + 100])
        assert len(counts.counts) <= 50
    items = [*counts.items()]
    assert dict(items) == Counter(text) and len(items) == len(dict(items)) and len([*tmp_path.iterdir()]) > 5


def test_words_of_a_sample_are_counted_where_the_config_says(make_documents: MakeDocuments) -> None:
    documents = make_documents([f"w{number} ".encode() * 10 for number in range(5000)])
    whole, sample = (WordsConfig(sample_bytes=size).build(documents) for size in (None, 30_000))
    assert whole.vocabulary.size == 5003 and 300 < sample.vocabulary.size < 1500


def test_characters_are_all_that_were_seen(make_documents: MakeDocuments) -> None:
    alphabet = CharactersConfig().build(make_documents(["añ\n".encode(), "🙂b".encode()])).to_dict()["alphabet"]
    assert alphabet == "\nabñ🙂"


def test_a_stored_config_keeps_the_first_documents() -> None:
    """Records name all fields, also those that were the only ones before."""
    for study in ("transformer_base", "long_summarization"):
        lines = (PUBLISHED / study / "results.jsonl").read_text(encoding="utf-8")
        stored = json.loads(re.findall(r'{"kind":"bpe"[^}]*}', lines)[0])
        assert TokenizerConfig.from_dict(stored).first_bytes == 200_000_000
    assert BPEConfig().first_bytes is None is WordPieceConfig().first_bytes


def test_runs_that_learn_at_once_share_the_tokenizer_of_the_first(
    make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another run enters its own while this one learns: symbols of word pieces have other numbers in every process."""
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    documents, config = make_documents([b"a b c\n" * 9]), WordsConfig()
    other = WordsConfig().build([Document("other", b"x y z\n")])
    build = WordsConfig.build

    def slow(self: WordsConfig, learned: Any) -> Tokenizer:
        monkeypatch.setattr(WordsConfig, "build", lambda self, learned: other)
        cached_tokenizer(config, documents, "corpus")
        return build(self, learned)

    monkeypatch.setattr(WordsConfig, "build", slow)
    assert cached_tokenizer(config, documents, "corpus").to_dict() == other.to_dict()
    assert len([*(tmp_path / "tokenizers").iterdir()]) == 1


def test_who_waits_for_a_tokenizer_reads_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make_documents: MakeDocuments
) -> None:
    documents = make_documents([b"a b c\n" * 170_000] * 2)
    with learned_texts("bpe", documents, "strict") as texts:
        assert len([*texts]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(preparing, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(preparing, "EVERY_SECONDS", 0.02)
    lines = list[str]()

    def wait_for(line: str) -> None:
        deadline = time.monotonic() + 30
        while line not in lines:
            assert time.monotonic() < deadline, lines
            time.sleep(0.01)
            lines.extend(capsys.readouterr().err.splitlines())

    with learned_texts("bpe", documents, "strict") as texts:
        next(texts), next(texts)
        wait_for("learns bpe, once: 1 of 2 MB of text read")
        assert next(texts, None) is None
        wait_for("learns bpe, once: 2 MB of text read, chooses symbols")
    *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"learned bpe in \d+ s from 2\.0 MB of text", last)
