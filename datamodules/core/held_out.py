"""Recognizes held-out texts of labelled data, and their sentences, by their words, regardless of case, spaces and
punctuation."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator

__all__ = ["digests_of_training", "held_out_digests", "sentences_of", "text_digest", "words_of"]

LEAST_WORDS, LEAST_OF_SENTENCE = 5, 8
"""The fewest words of a held-out text, and of one of its sentences, that count; shorter ones may occur twice by
chance."""
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(rb"""(?<=[.!?])["')\]]*\s+|[\r\n]+|<br\s*/?>""")


def words_of(text: bytes) -> list[str]:
    """Returns the words of a text: case-folded, without punctuation, and in Unicode's normal form NFKC."""
    return _WORD.findall(unicodedata.normalize("NFKC", text.decode(errors="replace")).casefold())


def text_digest(text: bytes) -> bytes:
    """Returns a hash of the words of a text: texts that differ only in case, spaces or punctuation have equal hashes.
    The hash of a text without words is of its bytes."""
    words = " ".join(words_of(text))
    return hashlib.blake2b(words.encode() or text.strip(), digest_size=16).digest()


def sentences_of(text: bytes) -> list[bytes]:
    """Returns the sentences of a text. One ends at the end of a line, at a line break of HTML, and at a full stop, an
    exclamation mark or a question mark before white space."""
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def held_out_digests(texts: Iterable[bytes]) -> dict[bytes, bytes]:
    """Returns held-out texts of at least LEAST_WORDS words, and their sentences of at least LEAST_OF_SENTENCE words, by
    their hashes."""
    digests: dict[bytes, bytes] = {}
    for text in texts:
        parts = [(text, LEAST_WORDS), *((sentence, LEAST_OF_SENTENCE) for sentence in sentences_of(text))]
        digests |= {text_digest(part): part for part, least in parts if len(words_of(part)) >= least}
    return digests


def digests_of_training(text: bytes) -> Iterator[bytes]:
    """Yields the hashes of a training text, of its lines and of its sentences."""
    lines, sentences = text.splitlines(), sentences_of(text)
    yield from map(text_digest, {text: None, **dict.fromkeys(lines), **dict.fromkeys(sentences)})
