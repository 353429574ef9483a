"""Corpora for the tests: generated ones, and real ones in the folder that LIT_DATA names."""

import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from datamodules.core.index import IndexedDocuments, Text, index_corpus

MakeDocuments = Callable[[Sequence[bytes]], IndexedDocuments]


@pytest.fixture(scope="session")
def cache_for_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_for_tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CACHE", str(cache_for_tests))


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    if "LIT_DATA" not in os.environ:
        pytest.skip("LIT_DATA names no folder with real corpora")
    return Path(os.environ["LIT_DATA"])


@pytest.fixture(scope="session")
def make_documents(tmp_path_factory: pytest.TempPathFactory) -> MakeDocuments:
    """Returns a function that indexes the given texts as the documents of one train split."""
    folder = tmp_path_factory.mktemp("made")

    def make(texts: Sequence[bytes]) -> IndexedDocuments:
        entries = (Text(str(number), "train", BytesIO(text), folder) for number, text in enumerate(texts))
        return index_corpus([str(folder), [text.hex() for text in texts]], "", 1 << 20, entries).documents("train")

    return make
