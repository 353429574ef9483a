"""Tokenizers that look words up encode as those that read every text whole."""

from __future__ import annotations

import json
import pickle
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from datamodules import BPEConfig, WordPieceConfig
from datamodules.core import encoding
from datamodules.core.documents import Document
from datamodules.core.encoding import EncodedWords
from datamodules.core.tokenizers import BPE, PieceTokenizer, Symbols, Tokenizer

TEXT = "ab abc été 1984 it's  two 中文\n\n A_b x-y...\n"
SPACED = "a\n\n\n\nb\n\n\n\nc\t\t\t    \t\t    d"
"""Text from which merges of white space are learned."""
CORPUS = [Document("x", f"{TEXT}{SPACED}".encode() * 9)]
TOKENIZERS: dict[str, BPE | PieceTokenizer] = {
    "bpe": BPEConfig(size=320).build(CORPUS),
    "uncased word pieces": WordPieceConfig(size=60).build(CORPUS),
    "cased word pieces": WordPieceConfig(size=60, lowercase=False).build(CORPUS),
}
SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\u00a0\u1680\u180e\u2003\u2028\u200b\u3000\ufeff\0"
LETTERS = "abÉ\u0301中'12.s-_²٣"
TEXTS = st.text(st.sampled_from(f"{SPACES}{LETTERS}"), max_size=20)
PLAIN = st.lists(st.text(st.sampled_from(LETTERS), min_size=1, max_size=4), max_size=5).map(" ".join)
WIDE = st.lists(st.sampled_from([" ", "   ", *"ad.É"]), max_size=6).map("".join)
MANY = st.lists(st.one_of(TEXTS, PLAIN, WIDE), max_size=6)


def whole(tokenizer: BPE | PieceTokenizer, text: str) -> list[int]:
    """The symbols by the library, which reads the text whole."""
    return [*tokenizer.model.encode(text, add_special_tokens=False).ids]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
def test_words_that_came_before_have_the_symbols_of_the_library(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.encoded.cut is not None
    for _ in range(2):
        assert tokenizer.encode(text.encode()).tolist() == whole(tokenizer, text)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=MANY)
def test_many_texts_have_the_symbols_of_each(name: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    expected = [whole(tokenizer, text) for text in texts]
    for _ in range(2):
        symbols, counts = tokenizer.encode_texts(texts)
        assert counts.tolist() == [*map(len, expected)]
        assert symbols.tolist() == [symbol for each in expected for symbol in each]


@given(texts=MANY)
def test_more_words_than_are_held_are_encoded_again(texts: list[str]) -> None:
    tokenizer = BPE(TOKENIZERS["bpe"].serialised, "strict")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "WORDS", 3)
        longest = 3
        for text in texts:
            longest = max(longest, len(text))
            expected = whole(tokenizer, text)
            assert tokenizer.encode(text.encode()).tolist() == expected
            assert tokenizer.encode_texts([text]).symbols.tolist() == expected
            assert max(len(tokenizer.encoded.known), len(tokenizer.encoded.plain)) <= longest


def test_a_copy_for_another_process_has_no_words() -> None:
    tokenizer = TOKENIZERS["bpe"]
    tokenizer.encode_texts([TEXT, "a plain text"])
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert tokenizer.encoded.known and tokenizer.encoded.plain
    assert not (copy.encoded.known or copy.encoded.plain)
    assert copy.encode(TEXT.encode()).tolist() == tokenizer.encode(TEXT.encode()).tolist()


class Doubling:
    def encode(self, text: bytes) -> Symbols:
        return np.repeat(BPE.encode(cast(BPE, self), text), 2)


def test_a_class_that_encodes_in_another_way_encodes_many_texts_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "kinds", {**Tokenizer.kinds})

    class Doubled(BPE, kind="doubled"):
        encode = Doubling.encode

    class Mixed(Doubling, BPE, kind="mixed"):  # type: ignore[misc]
        pass

    for kind in (Doubled, Mixed):
        tokenizer = kind(TOKENIZERS["bpe"].serialised, "strict")
        assert tokenizer.encode_texts(["ab", "ab"]).counts.tolist() == [2 * len(whole(tokenizer, "ab"))] * 2


def test_symbols_are_a_copy_that_a_caller_may_change() -> None:
    tokenizer = TOKENIZERS["bpe"]
    before = tokenizer.encode(b"ab ab")
    before[:] = 0
    assert tokenizer.encode(b"ab ab").tolist() == whole(tokenizer, "ab ab") != before.tolist()
    assert tokenizer.encode(b"").dtype == np.int32


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"added": {"lstrip": True}}, id="strips the space before it"),
        pytest.param({"added": {"rstrip": True}}, id="strips the space after it"),
        pytest.param({"added": {"single_word": True}}, id="is a word alone"),
        pytest.param({"added": {"content": "[a b]"}}, id="holds a space"),
        pytest.param({"normalizer": {"type": "NFC"}}, id="another normalizer"),
        pytest.param({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, id="another cut"),
    ],
)
def test_texts_are_read_whole_where_a_word_may_depend_on_others(changes: dict[str, Any]) -> None:
    plain = json.loads(TOKENIZERS["uncased word pieces"].serialised)
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = {"id": plain["model"]["vocab"]["[UNK]"], "content": "[UNK]"} | usual
    if "added" in changes:
        changes = {"added_tokens": [added | changes["added"]]}
    else:
        assert EncodedWords(None, plain | {"added_tokens": [added]}).cut is not None
    assert EncodedWords(None, plain | changes).cut is None
    if "added_tokens" in changes:
        tokenizer = PieceTokenizer(json.dumps(plain | changes), "strict")
        text = "ab  [UNK]  x[UNK] [a b] ab"
        assert tokenizer.encode(text.encode()).tolist() == whole(tokenizer, text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"use_regex": False}, id="no cut at spaces"),
        pytest.param({"add_prefix_space": True}, id="a space before the text"),
    ],
)
def test_byte_pairs_are_read_whole_where_words_are_not_cut_like_gpt2_s(change: dict[str, bool]) -> None:
    plain = json.loads(TOKENIZERS["bpe"].serialised)
    model = json.dumps(plain | {"pre_tokenizer": plain["pre_tokenizer"] | change})
    tokenizer = BPE(model, "strict")
    assert tokenizer.encoded.cut is None
    assert tokenizer.encode(TEXT.encode()).tolist() == tokenizers.Tokenizer.from_str(model).encode(TEXT).ids
