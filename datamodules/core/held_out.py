"""Which texts of labelled data are held out from training, known by their words however they are written."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["text_digest", "words_of"]

_WORD = re.compile(r"\w+")


def words_of(text: bytes) -> list[str]:
    """Returns the words of a text, without case, marks between them, and forms that Unicode counts as the same."""
    return _WORD.findall(unicodedata.normalize("NFKC", text.decode(errors="replace")).casefold())


def text_digest(text: bytes) -> bytes:
    """Returns a hash of the words of a text, equal for texts that differ in case, spaces or punctuation alone; without
    words, that of its bytes."""
    words = " ".join(words_of(text))
    return hashlib.blake2b(words.encode() or text.strip(), digest_size=16).digest()
