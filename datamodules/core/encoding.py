"""The symbols of texts by tokenizers of Hugging Face, which encode each word once, and their type on disk."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lit_transformers.batch import Vocabulary
from lit_transformers.config import Plain

__all__ = ["EncodedTexts", "EncodedWords", "encode_in_this_thread", "symbol_type"]

NARROW = 1 << 16
"""Symbols of a vocabulary of at most this size take two bytes each."""
WORDS = 1 << 17
"""The most words whose symbols are held in memory, and the most of plain texts."""
START = "\n"
"""Precedes the first word of a plain text, among words that follow a space."""
MARK = -1
"""Precedes the symbols of each plain text. No symbol is negative."""
PARALLELISM = "TOKENIZERS_PARALLELISM"
SPACE = r" \t-\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as Unicode defines it. That of Python has separators such as \\x1c in addition."""
OF_GPT2 = re.compile(rf" ?[^{SPACE}]+|[{SPACE}]+(?=[{SPACE}][^{SPACE}])|[{SPACE}]+")
"""Parts of a text that GPT-2's way to cut it never joins: words, each with one space before it, and other white space,
of which the last character before a word is a separate part."""
OF_BERT = re.compile(r"[^ \t\n\r]+")
"""Parts of a text that BERT's way to cut it never joins: words, without the white space between them."""


def symbol_type(vocabulary: Vocabulary) -> np.dtype[Any]:
    """Returns the type of the symbols of a vocabulary on disk."""
    return np.dtype(np.uint16 if vocabulary.size <= NARROW else np.int32)


def encode_in_this_thread() -> None:
    """Keeps the library from starting as many threads as there are cores in every process that encodes: processes share
    the work. TOKENIZERS_PARALLELISM of the environment remains as it is."""
    if PARALLELISM not in os.environ:
        os.environ[PARALLELISM] = "false"


class EncodedTexts(NamedTuple):
    """The symbols of n texts. symbols (s,): end to end. counts (n,): of each text."""

    symbols: npt.NDArray[np.integer[Any]]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, each: Sequence[npt.NDArray[np.integer[Any]]]) -> Self:
        """Joins the symbols of texts."""
        counts = np.fromiter(map(len, each), np.int64, len(each))
        return cls(np.concatenate(each) if each else np.empty(0, np.int32), counts)


class EncodedWords:
    """Encodes texts without special symbols by a Hugging Face tokenizer. Where it encodes a word alike in every text,
    each word is encoded once. A copy in another process starts without words.

    model: the tokenizer. plain: its JSON, parsed.
    """

    def __init__(self, model: Any, plain: Mapping[str, Any]) -> None:
        self.model, self.cut = model, _cut(plain)
        self.known: dict[str, bytes] = {}
        self.plain: dict[str, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "cut": self.cut, "known": {}, "plain": {}}

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Returns the symbols of a text (n,)."""
        if self.cut is None:
            [whole] = self._encoded([text])
            return np.frombuffer(bytearray(whole), np.int32)
        return np.frombuffer(_looked_up(self.known, self.cut.findall(text), self._encoded), np.int32)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        """Returns the symbols of many texts, the fastest where nothing but single spaces divides their words."""
        runs = [
            self._encoded_plain([*run]) if is_plain else EncodedTexts.of([self.encode(text) for text in run])
            for is_plain, run in groupby(texts, lambda text: self.cut is not None and _is_plain(text))
        ]
        return EncodedTexts.of(()) if not runs else EncodedTexts(*map(np.concatenate, zip(*runs, strict=True)))

    def _encoded_plain(self, texts: Sequence[str]) -> EncodedTexts:
        words = (START + f" {START}".join(texts)).split(" ")
        symbols = np.frombuffer(_looked_up(self.plain, words, self._encoded_words), np.int32)
        is_mark = symbols == MARK
        starts = np.append(np.flatnonzero(is_mark), len(symbols))
        return EncodedTexts(symbols[~is_mark], np.diff(starts) - 1)

    def _encoded_words(self, words: Sequence[str]) -> Iterable[bytes]:
        """Returns the symbols of words of plain texts, those of a first word after the mark of its text."""
        encoded = self._encoded([word.removeprefix(START) if word[:1] == START else f" {word}" for word in words])
        marks = (array("i", [MARK] * (word[:1] == START)).tobytes() for word in words)
        return map(bytes.__add__, marks, encoded)

    def _encoded(self, texts: Sequence[str]) -> Iterable[bytes]:
        encode_in_this_thread()
        encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)  # without offsets into the text
        return (array("i", encoding.ids).tobytes() for encoding in encodings)


def _is_plain(text: str) -> bool:
    """Whether nothing but single spaces divides the words of a text: no other white space is printable."""
    return text.isprintable() and "  " not in text and not (text.startswith(" ") or text.endswith(" "))


def _looked_up(
    known: dict[str, bytes], parts: Sequence[str], encoded: Callable[[Sequence[str]], Iterable[bytes]]
) -> bytearray:
    """Returns the symbols of parts, end to end. Unknown parts are encoded, each once, and become known. Where there
    would be too many, none of the others is known any more."""
    try:
        return bytearray().join(map(known.__getitem__, parts))
    except KeyError:
        new = [part for part in dict.fromkeys(parts) if part not in known]
        if len(known) + len(new) > WORDS:
            known.clear()
            new = [*dict.fromkeys(parts)]
        known.update(zip(new, encoded(new), strict=True))
        return bytearray().join(map(known.__getitem__, parts))


def _cut(plain: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Returns the pattern of parts of a text that the tokenizer of a JSON encodes one by one; None where its symbols of
    a part may depend on the rest of the text."""
    model, normalizer, cut = (plain[name] or {} for name in ("model", "normalizer", "pre_tokenizer"))
    added: list[dict[str, Plain]] = plain["added_tokens"]
    if model.get("type") == "BPE" and cut.get("type") == "ByteLevel":
        is_gpt2 = cut.get("use_regex") and not (cut.get("add_prefix_space") or model.get("dropout"))
        return OF_GPT2 if is_gpt2 and not (normalizer or added) else None
    if model.get("type") == "WordPiece" and cut.get("type") == "BertPreTokenizer":
        reaches_out = any(
            token["lstrip"] or token["rstrip"] or token["single_word"] or re.search(f"[{SPACE}]", str(token["content"]))
            for token in added
        )
        return OF_BERT if normalizer.get("type") == "BertNormalizer" and not reaches_out else None
    return None
