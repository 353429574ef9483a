"""Recognizes held-out texts of labelled data by their words, whatever their case, spaces and punctuation."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["text_digest", "words_of"]

_WORD = re.compile(r"\w+")


def words_of(text: bytes) -> list[str]:
    """Returns the words of a text: case-folded, without punctuation, and in Unicode's normal form NFKC."""
    return _WORD.findall(unicodedata.normalize("NFKC", text.decode(errors="replace")).casefold())


def text_digest(text: bytes) -> bytes:
    """Returns a hash of the words of a text: texts that differ only in case, spaces or punctuation have equal hashes.
    The hash of a text without words is of its bytes."""
    words = " ".join(words_of(text))
    return hashlib.blake2b(words.encode() or text.strip(), digest_size=16).digest()
