"""Tokenizers: round trips, unknown symbols, plain data, errors that name the byte."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from datamodules import (
    BPEConfig,
    BytesConfig,
    CharactersConfig,
    DataError,
    Document,
    Documents,
    PretrainedTokenizerConfig,
    Tokenizer,
    TokenizerConfig,
    WordPieceConfig,
    WordsConfig,
    tokenizer_from_dict,
)
from datamodules.core.tokenizers import Bytes, Symbols, cached_tokenizer, encode_document, key_of
from lit_transformers.config import ConfigError, Plain

MakeDocuments = Callable[[Sequence[bytes]], Documents]
TEXT = "the cat sat on the mat .\nthe naïve dog — ate it\n"
CORPUS = [Document("one", TEXT.encode()), Document("two", b"a cat and a cat\n")]
CONFIGS = [BytesConfig(), CharactersConfig(), WordsConfig(), BPEConfig(size=300)]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
"""The pieces of a vocab.txt, by their lines."""


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_known_text_survives_the_round_trip(config: TokenizerConfig) -> None:
    tokenizer = config.build(CORPUS)
    symbols = tokenizer.encode(TEXT.encode())
    assert tokenizer.decode(symbols.tolist()) == TEXT
    assert 0 <= symbols.min() <= symbols.max() < tokenizer.vocabulary.boundary


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_the_boundary_is_the_last_symbol_and_has_no_text(config: TokenizerConfig) -> None:
    tokenizer = config.build(CORPUS)
    assert tokenizer.vocabulary.boundary == tokenizer.vocabulary.size - 1
    assert tokenizer.decode([tokenizer.vocabulary.boundary]) == ""


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_plain_data_makes_the_same_tokenizer(config: TokenizerConfig) -> None:
    tokenizer = config.build(CORPUS)
    restored = tokenizer_from_dict(tokenizer.to_dict())
    assert restored.vocabulary == tokenizer.vocabulary
    assert restored.encode(TEXT.encode()).tolist() == tokenizer.encode(TEXT.encode()).tolist()


@pytest.mark.parametrize("config", [BytesConfig(), CharactersConfig(), BPEConfig(size=300)], ids=lambda c: c.kind)
def test_the_lengths_of_symbols_add_up_to_the_text(config: TokenizerConfig) -> None:
    tokenizer = config.build(CORPUS)
    lengths = tokenizer.vocabulary.byte_lengths
    assert lengths is not None
    assert len(lengths) == tokenizer.vocabulary.size
    assert sum(lengths[symbol] for symbol in tokenizer.encode(TEXT.encode())) == len(TEXT.encode())


@given(st.text())
def test_byte_pairs_lose_nothing_of_any_text(text: str) -> None:
    tokenizer = _byte_pairs()
    assert tokenizer.decode(tokenizer.encode(text.encode()).tolist()) == text


def _byte_pairs(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 - made once for all examples
    if not cache:
        cache.append(BPEConfig(size=300).build(CORPUS))
    return cache[0]


def test_words_are_numbered_by_frequency_with_line_ends_among_them() -> None:
    tokenizer = WordsConfig().build([Document("d", b"b b b a a c\n" * 2 + b"b\n")])
    assert tokenizer.to_dict()["words"] == ["b", "a", "<eos>", "c", "<unk>"]
    assert tokenizer.encode(b"a b\n\nzzz").tolist() == [1, 0, 2, 2, 4]


def test_rare_words_are_unknown_and_counted_as_such() -> None:
    text = b"a a a b b c d e f\n"
    assert WordsConfig(minimum=2).build([Document("d", text)]).to_dict()["words"] == ["<unk>", "a", "b", "<eos>"]
    assert WordsConfig(size=3).build([Document("d", text)]).to_dict()["words"] == ["<unk>", "a", "<eos>"]


def test_a_written_unknown_word_is_the_unknown_word() -> None:
    tokenizer = WordsConfig().build([Document("d", b"a <unk> a <unk> <unk>\n")])
    assert tokenizer.encode(b"<unk> never").tolist() == [0, 0]


def test_unknown_characters_share_a_symbol_of_one_byte() -> None:
    tokenizer = CharactersConfig().build([Document("d", b"abc")])
    assert tokenizer.encode("aé你".encode()).tolist() == [0, 3, 3]
    assert tokenizer.decode([0, 3]) == "a\ufffd"
    assert tokenizer.vocabulary.byte_lengths == (1, 1, 1, 1, 0)


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: config.kind)
def test_undecodable_bytes_name_the_place_and_the_way_out(config: TokenizerConfig) -> None:
    document = Document("corpus.txt@1000", b"good \xff", offset=1000)
    with pytest.raises(DataError, match=r"^corpus.txt: byte 1005 is not UTF-8.*tokenizer.errors=replace") as error:
        encode_document(config.build(CORPUS), document)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="byte 1005"):
        config.build([document])


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: config.kind)
def test_undecodable_bytes_can_be_replaced(config: TokenizerConfig) -> None:
    tokenizer = config.override({"errors": "replace"}).build([Document("d", b"good \xff\n")])
    assert tokenizer.decode(tokenizer.encode(b"good \xff\n").tolist()) == "good \ufffd\n"


def test_bytes_decode_what_is_no_text() -> None:
    assert BytesConfig().build([]).decode([0xFF, 0x41]) == "\ufffdA"


def test_byte_pairs_are_learned_from_the_first_bytes_only() -> None:
    first, second = Document("a", b"xyxyxyxy " * 50), Document("b", b"qwqwqwqw " * 50)
    tokenizer = BPEConfig(size=280, train_bytes=100).build([first, second])
    assert tokenizer.to_dict() == BPEConfig(size=280).build([first]).to_dict()
    assert tokenizer.to_dict() != BPEConfig(size=280).build([first, second]).to_dict()


def test_a_made_tokenizer_is_read_from_the_cache(
    make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    documents = make_documents([TEXT.encode()])
    tokenizer = cached_tokenizer(WordsConfig(), documents, "corpus")
    monkeypatch.setattr(WordsConfig, "build", None)
    assert cached_tokenizer(WordsConfig(), documents, "corpus").to_dict() == tokenizer.to_dict()


def test_a_damaged_cache_says_what_to_remove(
    make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    documents = make_documents([TEXT.encode()])
    cached_tokenizer(WordsConfig(), documents, "corpus")
    [file] = (tmp_path / "tokenizers").iterdir()
    file.write_text('{"kind": "wor')
    with pytest.raises(DataError, match="remove this file"):
        cached_tokenizer(WordsConfig(), documents, "corpus")


def test_a_class_from_outside_is_restored_and_its_name_is_no_other_class_s() -> None:
    class Shouted(Bytes, kind="shouted"):
        def __init__(self, mark: str) -> None:
            super().__init__()
            self.mark = mark

        def encode(self, text: bytes) -> Symbols:
            return super().encode(text.upper() + self.mark.encode())

        def to_dict(self) -> dict[str, Plain]:
            return {"kind": "shouted", "mark": self.mark}

    restored = tokenizer_from_dict(Shouted("!").to_dict())
    del Tokenizer.kinds["shouted"]
    assert bytes(restored.encode(b"ah").tolist()) == b"AH!"
    with pytest.raises(ConfigError, match=r"'words' is taken by .*Words; give Others another"):

        class Others(Bytes, kind="words"):
            pass


def test_what_is_cached_of_a_class_from_outside_is_of_its_code_and_of_what_that_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After an edit of a plug-in, or of a module next to it, the symbols that it gave before are not used again."""
    file, helper = tmp_path / "edited_tokenizer.py", tmp_path / "edited_shift.py"
    helper.write_text("SHIFT = 1\n")
    file.write_text(
        "from datamodules import BytesConfig\nfrom edited_shift import SHIFT\n"
        "class MineConfig(BytesConfig, kind='mine'):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = importlib.import_module("edited_tokenizer").MineConfig()
    keys = [key_of(config)]
    for edited in (file, helper):
        edited.write_text(edited.read_text() + "    \n")
        keys.append(key_of(config))
    assert len({key["code"] for key in keys}) == 3
    assert key_of(WordsConfig()) == WordsConfig().to_dict()


def test_something_else_is_no_tokenizer() -> None:
    with pytest.raises(DataError, match="not the description of one"):
        tokenizer_from_dict({"kind": "runes"})


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Each symbol of a text as the text that it stands for."""
    return [tokenizer.decode([symbol]) for symbol in tokenizer.encode(text.encode()).tolist()]


def test_word_pieces_are_those_of_bert_and_say_where_words_begin() -> None:
    tokenizer = WordPieceConfig(size=60).build(CORPUS)
    symbols = tokenizer.encode("The naïve CAT.".encode())
    continuing = tokenizer.continuing()
    assert continuing is not None and len(continuing) == tokenizer.vocabulary.size
    assert tokenizer.decode(symbols.tolist()).lower() == "the naive cat." and tokenizer.unknown not in symbols
    assert (~continuing[symbols]).sum() == 4, "three words and a mark"
    assert tokenizer.vocabulary.boundary == tokenizer.vocabulary.size - 1 and tokenizer.vocabulary.byte_lengths is None
    assert tokenizer.decode([tokenizer.vocabulary.boundary]) == "" and tokenizer.specials is None
    cased = WordPieceConfig(size=60, lowercase=False).build(CORPUS)
    assert cased.unknown in cased.encode(b"THE") and cased.unknown not in cased.encode("naïve".encode())
    restored = tokenizer_from_dict(tokenizer.to_dict())
    assert restored.encode(TEXT.encode()).tolist() == tokenizer.encode(TEXT.encode()).tolist()


def test_byte_pairs_and_words_say_where_words_begin() -> None:
    byte_pairs = BPEConfig(size=300).build(CORPUS)
    symbols = byte_pairs.encode(b"the cat sat\non")
    texts = [byte_pairs.decode([symbol]) for symbol in symbols.tolist()]
    continuing = byte_pairs.continuing()
    assert continuing[symbols].tolist() == [text[0] not in " \n" for text in texts] and " cat" in texts
    words = WordsConfig().build(CORPUS).continuing()
    assert words is not None and not words.any()
    assert BytesConfig().build([]).continuing() is None


def test_a_pretrained_vocabulary_is_read_with_its_own_numbers_and_special_symbols(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(BERT) + "\n")
    tokenizer = PretrainedTokenizerConfig(path=str(path)).build([])
    symbols = tokenizer.encode(b"The cats sat, cat.").tolist()
    assert [BERT[symbol] for symbol in symbols] == ["the", "cat", "##s", "sat", "[UNK]", "cat", "."]
    assert tokenizer.specials == (2, 3, 4, {0, 1, 2, 3, 4}) and tokenizer.vocabulary.boundary == 2
    assert tokenizer.vocabulary.size == len(BERT) and tokenizer.unknown == 1
    assert tokenizer.decode([2, *symbols[:4], 3, 0]) == "the cats sat"
    restored = tokenizer_from_dict(tokenizer.to_dict())
    assert (restored.vocabulary, restored.specials) == (tokenizer.vocabulary, tokenizer.specials)
    path.write_text("\n".join([*BERT, "The"]) + "\n")
    assert BERT.index("the") not in PretrainedTokenizerConfig(path=str(path)).build([]).encode(b"The"), "it is cased"


def test_a_pretrained_tokenizer_in_json_is_the_one_of_its_library(tmp_path: Path) -> None:
    """Its specials are those of RoBERTa, and its own template, which adds them, is not used: rows have their own."""
    model = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    model.train_from_iterator([TEXT] * 3, vocab_size=300, special_tokens=specials, show_progress=False)
    model.enable_padding(length=40)
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PretrainedTokenizerConfig(path=str(tmp_path / "tokenizer.json")).build([])
    model.no_padding()
    assert tokenizer.encode(TEXT.encode()).tolist() == model.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.specials == (0, 2, 4, {0, 1, 2, 3, 4}) and tokenizer.unknown is None
    continuing = tokenizer.continuing()
    assert continuing is not None
    assert continuing[tokenizer.encode(b" cat dog")].tolist() == [
        text[0] != " " for text in pieces_of(tokenizer, " cat dog")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("vocab.txt", "[UNK]\n[CLS]\n[SEP]\nthe\n", r"has no symbol \[MASK\] \(nor <mask>\)"),
        ("vocab.txt", "the\ncat\n", r"has no symbol \[UNK\], so it is no vocabulary of BERT"),
        ("tokenizer.json", "{", "cannot be read as a tokenizer"),
    ],
)
def test_a_file_that_is_no_tokenizer_of_a_masked_model_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        PretrainedTokenizerConfig(path=str(tmp_path / name)).build([])
    assert "\n" not in str(error.value) and "tokenizer.path" in str(error.value)
    with pytest.raises(DataError, match=r"no such file or folder .*; correct tokenizer\.path"):
        PretrainedTokenizerConfig(path=str(tmp_path / "nowhere.txt")).build([])


def test_a_pretrained_tokenizer_is_read_anew_and_not_from_the_cache(
    tmp_path: Path, make_documents: MakeDocuments
) -> None:
    path, documents = tmp_path / "vocab.txt", make_documents([b"the cat"])
    sizes = []
    for pieces in (BERT, [*BERT, "dog"]):
        path.write_text("\n".join(pieces) + "\n")
        sizes.append(cached_tokenizer(PretrainedTokenizerConfig(path=str(path)), documents, "corpus").vocabulary.size)
    assert sizes == [10, 11]
