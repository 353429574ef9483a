"""Pairs from catalogues of translated messages: .po files, and the catalogues of an installed package."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

from datamodules.core.archives import members
from datamodules.core.documents import Split
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import damage, format_of, whole
from datamodules.pairs.source import Languages
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import Listed, files_of, nothing_left, split_by_hash, stamps
from lit_transformers.config import Fraction

__all__ = ["CataloguesConfig", "MessagesConfig"]

INSTALL = "pip install 'lit-transformers[messages]'"
PACKAGE = "jupyterlab-language-pack-fr-FR"
CONTEXT = "\x04"
"""Separates the context of a compiled message from its text."""


class CataloguesConfig(TextPairsConfig, kind="catalogues"):
    """Catalogues of messages (.po), each in one split by a hash of its name, because lines of a file are similar.

    Fuzzy, obsolete, untranslated and repeated messages are left out and counted.

    path        a file, a folder or a tar, relative to LIT_DATA or to the working folder
    source      the language of the messages
    target      the language of their translations; the headers of the files, which are often copied, are ignored
    validation  the fractions of the splits
    test
    """

    path: str = "python-docs-es"
    source: str = "en"
    target: str = "es"
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    @property
    def languages(self) -> Languages | None:
        return self.source, self.target

    def corpus(self) -> IndexedCorpus:
        left_out = Counter[str]()
        files = files_of(self.path, _is_catalogue, left_out)
        key = ["catalogues", self.target, self.validation, self.test, stamps(files)]
        return index_corpus(key, "", WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        polib, unique_texts = _polib(), set[Texts]()
        for path, name, content in _contents(files, left_out):
            split = split_by_hash(_name_in_tar(name, path), self.validation, self.test)
            for message in _messages(_parsed(polib, content, name), left_out):
                if message.texts in unique_texts:
                    left_out["repeated"] += 1
                else:
                    unique_texts.add(message.texts)
                    yield pair_text(name, split, message.line - 1, message.texts, path)


class MessagesConfig(TextPairsConfig, kind="messages"):
    """2,993 English messages of JupyterLab and their French translations, from the package that carries them.

    Messages are split by a hash of their letters and digits alone, so that those which differ only in case and
    punctuation are in the same split.

    validation  the fractions of the splits
    test
    """

    validation: Fraction = 0.1
    test: Fraction = 0.1

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    @property
    def languages(self) -> Languages | None:
        return "en", "fr"

    def corpus(self) -> IndexedCorpus:
        try:
            package = distribution(PACKAGE)
        except PackageNotFoundError:
            raise DataError(f"source messages: the package {PACKAGE} is not installed; {INSTALL}") from None
        files = sorted(
            Path(str(package.locate_file(file)))
            for file in package.files or []
            if file.parent.name == "LC_MESSAGES" and file.suffix == ".json"
        )
        left_out = Counter[str]()
        file_stamps = stamps([Listed(file, file.name) for file in files])
        prefix = f"{PACKAGE}-{package.version}-"
        return index_corpus([self.to_dict(), file_stamps], prefix, WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Path], left_out: Counter[str]) -> Iterator[Text]:
        unique_texts = set[Texts]()
        for file in files:
            messages = json.loads(file.read_text(encoding="utf-8"))
            for row, (key, forms) in enumerate(messages.items()):
                text = key.rpartition(CONTEXT)[2]
                if not text or not forms or not forms[0].strip():
                    left_out["untranslated"] += bool(text)
                elif (texts := Texts(text, (forms[0],))) in unique_texts:
                    left_out["repeated"] += 1
                else:
                    unique_texts.add(texts)
                    yield pair_text(file.name, self._split(text), row, texts, file)

    def _split(self, text: str) -> Split:
        letters = "".join(letter for letter in text.casefold() if letter.isalnum())
        return split_by_hash(letters, self.validation, self.test)


class _Message(NamedTuple):
    line: int
    texts: Texts


def _contents(files: list[Listed], left_out: Counter[str]) -> Iterator[tuple[Path, str, bytes]]:
    """Yields the path, name and content of every catalogue."""
    for path, name in files:
        with damage(path):
            for member in members(path, name, _is_catalogue, left_out):
                yield path, member.name, whole(member)


def _is_catalogue(name: str) -> bool:
    return name.endswith(".po") or format_of(name) == "archive"


def _name_in_tar(name: str, path: Path) -> str:
    """Returns a file's name within its tar, so that it is in the same split as outside of it."""
    return name.partition(f"{path.name}/")[2] or name


def _polib() -> ModuleType:
    try:
        import polib
    except ImportError:
        raise DataError(
            f"source catalogues: the package polib, which reads .po files, is not installed; {INSTALL}"
        ) from None
    return polib


def _parsed(polib: ModuleType, content: bytes, name: str) -> Any:
    """Parses a catalogue. Raises DataError where it is not UTF-8, is empty, or is not a catalogue."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    if not text.strip():
        raise DataError(f"{name}: empty, there is no message to read; fetch it again or correct data.source.path")
    try:
        with NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".po") as copy:
            copy.write(text)  # of a text, and not of a file, the library takes U+2028 and the like for line ends
            copy.flush()
            return polib.pofile(copy.name, encoding="utf-8")
    except (OSError, ValueError, IndexError) as error:
        syntax = re.search(r"\(?line (\d+)\)?", str(error))
        reason = f"line {syntax[1]}" if syntax else type(error).__name__
        raise DataError(f"{name}: not a catalogue ({reason}); correct or remove it") from None


def _messages(catalogue: Any, left_out: Counter[str]) -> Iterator[_Message]:
    """Yields the translated messages; one with a plural gives two, its first form and its last, as English has two."""
    for entry in catalogue:
        forms = [entry.msgstr_plural[form] for form in sorted(entry.msgstr_plural)] or [entry.msgstr]
        if entry.obsolete:
            left_out["obsolete"] += 1
        elif "fuzzy" in entry.flags:
            left_out["fuzzy"] += 1
        elif not all(form.strip() for form in forms):
            left_out["untranslated"] += 1
        else:
            yield _Message(entry.linenum, Texts(entry.msgid, (forms[0],)))
            if entry.msgid_plural:
                yield _Message(entry.linenum, Texts(entry.msgid_plural, (forms[-1],)))
