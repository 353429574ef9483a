"""Documents that are sorted by language or length are noticed, and no real corpus is called sorted without a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from datamodules import BPEConfig, FilesConfig, LanguageData, LanguageDataConfig
from datamodules.core.archives import members
from datamodules.core.order import EvenlySpaced, sorted_by

REAL = [
    *(f"multi30k/{split}.{language}.gz" for split in ("train", "val") for language in ("en", "cs", "de", "fr")),
    *(
        f"multi30k/test_20{test}.{language}.gz"
        for test in ("17_flickr", "17_mscoco")
        for language in ("en", "de", "fr")
    ),
    *(f"imdb/imdb.{split}.jsonl.xz" for split in ("train", "test")),
    *(f"scitldr-a/{split}.jsonl.xz" for split in ("train", "dev", "test")),
    *(f"sick2014/SICK_{part}.txt.xz" for part in ("train", "trial", "test_annotated")),
    *(f"sst2-glue/{split}.tsv.xz" for split in ("train", "dev", "test")),
    *(f"ud-english-ewt/en_ewt-ud-{split}.conllu.xz" for split in ("dev", "test")),
    *(f"wnut17/{name}.xz" for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")),
    "cola/cola_public.zip",
    "enwiki-xml-sample/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    "gutenberg-books/gutenberg-books.tar.xz",
    "python-docs-es/python-docs-es-po.tar.xz",
    "qmsum/qmsum-ALL.tar.xz",
    "scisummnet/scisummnet-2019.tar.xz",
    "trec-qc/qc.zip",
    "wikitext-2/wiki.train.tokens.xz",
]
BETWEEN = {"conll": b"\n\n", "annotated": b"\n\n", "xml": b"<page>", "wiki.": b"\n \n"}
"""The ends of documents, by a part of a file's name; otherwise they are lines."""
QUICK = ("multi30k/val.en", "multi30k/test_2017_mscoco.en", "ud-english-ewt/en_ewt-ud-dev", "cola")


def texts_of(path: Path) -> Iterator[bytes]:
    """The documents of a file in their order: those of all members of an archive, one member after another."""
    for member in members(path, path.name, lambda name: True):
        end = next((end for part, end in BETWEEN.items() if part in member.name), b"\n")
        content = member.stream.read()
        yield from [content] if ".tar" in path.name else content.split(end)


def found_in(texts: Iterable[bytes]) -> str | None:
    spaced = EvenlySpaced()
    for text in texts:
        if text.strip():
            spaced.add(text)
    return sorted_by(spaced.texts)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name.startswith(QUICK) else pytest.mark.slow) for name in REAL]
)
def test_no_real_corpus_is_called_sorted(real_data: Path, name: str) -> None:
    assert found_in(texts_of(real_data / name)) is None


@pytest.mark.parametrize("other", ["cs", "de", "fr"])
def test_one_language_after_another_is_noticed(real_data: Path, other: str) -> None:
    english, translated = ([*texts_of(real_data / f"multi30k/val.{language}.gz")] for language in ("en", other))
    found = found_in([*english, *translated])
    assert found is not None and found.startswith("by language or another kind of text (the pairs of bytes")
    alternating = (text for pair in zip(english, translated, strict=True) for text in pair)
    assert found_in(alternating) is None


def test_an_order_by_length_is_noticed_in_both_directions(real_data: Path) -> None:
    texts = [*filter(None, texts_of(real_data / "multi30k/val.en.gz"))]
    for reverse in (False, True):
        found = found_in(sorted(texts, key=len, reverse=reverse))
        assert found is not None and found.startswith("by length, from about ")


def test_documents_are_spaced_evenly_whatever_their_number() -> None:
    for count in (3, 100, 101, 777):
        spaced = EvenlySpaced(most=100)
        for number in range(count):
            spaced.add(str(number).encode())
        places = [int(text.beginning) for text in spaced.texts]
        assert min(count, 50) <= len(places) <= 100
        assert {b - a for a, b in pairwise(places)} == {spaced.distance}
        assert count - places[-1] <= spaced.distance


def test_who_learns_or_splits_by_the_order_of_sorted_documents_reads_so(real_data: Path, tmp_path: Path) -> None:
    """English, then Czech: in a folder, of which a tokenizer learns from the first files alone, and in one file that is
    cut into splits."""
    folder = tmp_path / "set"
    folder.mkdir()
    texts = [b"\n".join(texts_of(real_data / f"multi30k/val.{language}.gz")) for language in ("en", "cs")]
    for text, name in zip(texts, "ab", strict=True):
        (folder / f"{name}.txt").write_bytes(text)
    whole = tmp_path / "whole.txt"
    whole.write_bytes(b"\n".join(texts))

    def messages(path: Path, **fields: Any) -> list[str]:
        source = FilesConfig(path=str(path), piece=256, validation=0.0, test=0.0)
        return LanguageData(LanguageDataConfig(source=source, **fields)).reading_messages()

    first, sample = BPEConfig(size=300, train_bytes=9000), BPEConfig(size=300, sample_bytes=9000)
    [found] = messages(folder, tokenizer=first)
    assert "documents are sorted by language" in found and "set data.tokenizer.train_bytes=null" in found
    assert messages(folder, tokenizer=sample) == messages(folder) == []
    *_, found = messages(whole)
    assert "documents are sorted by language" in found and "make a file for each split" in found
