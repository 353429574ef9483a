"""The symbols of many short texts: a word that came before is looked up, not encoded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from datamodules.core.tokenizers import BPE, Tokenizer
from lit_transformers.batch import Vocabulary

__all__ = ["symbol_type", "text_encoder"]

NARROW = 1 << 16
"""Symbols of a vocabulary of at most this size take two bytes each."""
WORDS = 1 << 18
"""How many words are kept at once, each with its symbols."""


def symbol_type(vocabulary: Vocabulary) -> np.dtype[Any]:
    """Returns the type of the symbols of a vocabulary on disk."""
    return np.dtype(np.uint16 if vocabulary.size <= NARROW else np.int32)


def text_encoder(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Returns a function from a text to the bytes of its symbols on disk, the same as of ``Tokenizer.encode``; a text
    of only white space has none."""
    dtype = symbol_type(tokenizer.vocabulary)

    def encode(text: str) -> bytes:
        return tokenizer.encode(text.encode()).astype(dtype).tobytes() if text.strip() else b""

    if not _cuts_at_spaces(tokenizer):
        return encode
    first, later = _Encoded("", encode), _Encoded(" ", encode)

    def encode_words(text: str) -> bytes:
        words = text.split()
        if " ".join(words) != text or not words:  # otherwise single spaces alone are between words
            return encode(text)
        return b"".join([first[words[0]], *map(later.__getitem__, words[1:])])

    return encode_words


class _Encoded(dict[str, bytes]):
    """The symbols of words that came before, each with ``before`` before it."""

    def __init__(self, before: str, encode: Callable[[str], bytes]) -> None:
        self.before, self.encode = before, encode

    def __missing__(self, word: str) -> bytes:
        symbols = self.encode(f"{self.before}{word}")
        if len(self) < WORDS:
            self[word] = symbols
        return symbols


def _cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer encodes each word of a text, with the space before it, independently of its context. The
    tokenizer of GPT-2 does: it cuts a text before a space that a character follows, and merges nothing across a cut."""
    if not isinstance(tokenizer, BPE):
        return False
    plain = json.loads(tokenizer.serialised)
    cut, model = plain["pre_tokenizer"] or {}, plain["model"]
    is_plain = not (plain["added_tokens"] or plain["normalizer"] or plain["post_processor"] or model.get("dropout"))
    is_gpt2 = cut.get("type") == "ByteLevel" and cut.get("use_regex") and not cut.get("add_prefix_space")
    return bool(is_plain and is_gpt2)
