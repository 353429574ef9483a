"""Tokenizers turn text into symbols and back. Each converts to plain data, so that a checkpoint can hold it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import Document, Documents, cache_folder, keep
from datamodules.core.encoding import EncodedTexts, EncodedWords, encode_in_this_thread
from datamodules.core.errors import DataError
from datamodules.core.learning import bytes_of, first, learning, sampled, word_counts
from datamodules.core.reading import locate
from lit_transformers.batch import Detokenizer, Vocabulary
from lit_transformers.config import Config, ConfigError, Plain, Positive, canonical_hash
from lit_transformers.source_code import code_from_outside

__all__ = [
    "BPE",
    "BPEConfig",
    "Bytes",
    "BytesConfig",
    "Characters",
    "CharactersConfig",
    "DecodedText",
    "PieceTokenizer",
    "PretrainedTokenizerConfig",
    "Specials",
    "Symbols",
    "Tokenizer",
    "TokenizerConfig",
    "WordPieceConfig",
    "Words",
    "WordsConfig",
    "cached_tokenizer",
    "encode_document",
    "key_of",
    "tokenizer_from_dict",
    "tokenizer_of_folder",
]

Symbols = npt.NDArray[np.integer[Any]]
Offsets = npt.NDArray[np.int64]
"""The first character of each symbol in a text, and that after its last (n, 2); equal where it stands for none."""
Errors = Literal["strict", "replace"]
SAMPLE_BYTES = 50_000_000
"""The text that merges and pieces are learned on by default."""
UNKNOWN, LINE_END = "<unk>", "<eos>"
SPECIAL_NAMES = {"[CLS]": ("[CLS]", "<s>"), "[SEP]": ("[SEP]", "</s>"), "[MASK]": ("[MASK]", "<mask>")}
"""The names that a pretrained tokenizer may give to each special symbol: those of BERT, then those of RoBERTa."""


class Specials(NamedTuple):
    """The special symbols of a pretrained tokenizer. all: every symbol that stands for no text, ``boundary``,
    ``separator`` and ``mask`` included: [CLS], [SEP] and [MASK]."""

    boundary: int
    separator: int
    mask: int
    all: frozenset[int]


class Tokenizer(ABC):
    """Base of all tokenizers: ``class Mine(Tokenizer, kind="mine")``. Symbols are numbered from 0.
    ``vocabulary.boundary`` precedes each document; it is the last symbol, unless the tokenizer has its own special
    symbols.

    kind      the name by which checkpoints and caches know the class, which no other class may have
    unknown   the symbol of text that no other symbol stands for; None where every text has a symbol
    specials  the special symbols that a pretrained tokenizer has; None where the boundary is the only one
    keeps_symbols  whether symbols of language modelling are kept in the cache; False where to encode costs as little
    """

    kind: ClassVar[str]
    keeps_symbols: ClassVar[bool] = True
    kinds: ClassVar[dict[str, type[Tokenizer]]] = {}
    vocabulary: Vocabulary
    unknown: int | None = None
    specials: Specials | None = None

    def __init_subclass__(cls, *, kind: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = Tokenizer.kinds.get(kind, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            taken = f"the kind {kind!r} is taken by {other.__module__}.{other.__name__}"
            raise ConfigError(f"{taken}; give {cls.__name__} another one", "tokenizer")
        cls.kind = kind
        Tokenizer.kinds[kind] = cls
        if _defined(cls, "encode") < _defined(cls, "encode_texts"):
            cls.encode_texts = Tokenizer.encode_texts  # type: ignore[method-assign]  # a parent's encodes as the parent

    @abstractmethod
    def encode(self, text: bytes) -> Symbols:
        """Returns the symbols of a text, without the boundary. Raises UnicodeDecodeError for text that must be
        UTF-8."""

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        """Hook: returns the symbols of many texts, each as ``encode`` does."""
        return EncodedTexts.of([self.encode(text.encode()) for text in texts])

    def encode_words(self, words: Sequence[str]) -> list[Symbols]:
        """Hook: returns the symbols of each word of a sentence that has single spaces between its words. The space
        before a word belongs to it, as for the pieces of a byte-level tokenizer, unless the tokenizer drops spaces."""
        return [self.encode(text.encode()) for text in spaced(words)]

    @abstractmethod
    def decode(self, symbols: Iterable[int]) -> str:
        """Returns the text of symbols; boundaries are left out."""

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        """Hook: returns the symbols of a text, without the boundary, and the characters that each stands for, without
        white space around them. By default no tokenizer knows them. Raises DataError where they are not known."""
        reason = f"a {self.kind} tokenizer does not say which characters a symbol stands for"
        raise DataError(f"data.source.tokenizer: {reason}; define encode_with_offsets, or use another one")

    def continuing(self) -> npt.NDArray[np.bool_] | None:
        """Hook: returns, for every symbol, whether it continues the word of the symbol before; None where words cannot
        be known from symbols."""
        return None

    @abstractmethod
    def to_dict(self) -> dict[str, Plain]:
        """Returns plain data from which ``tokenizer_from_dict`` makes the same tokenizer: ``kind``, and the data that
        ``restored`` needs."""

    def has_symbols_of(self, other: Tokenizer) -> bool:
        """Hook: whether each symbol stands for the same as that of another tokenizer; by default of an equal one."""
        return self.to_dict() == other.to_dict()

    @classmethod
    def restored(cls, plain: Mapping[str, Plain]) -> Tokenizer:
        """Returns the tokenizer of ``to_dict``, given without ``kind``: by default they are the arguments of the
        class."""
        return cls(**plain)


def _defined(kind: type[Tokenizer], name: str) -> int:
    """Returns the place of the class that defines a method, among a class and its parents in their order."""
    return next(place for place, parent in enumerate(kind.__mro__) if name in vars(parent))


def trimmed(text: str, offsets: Offsets) -> Offsets:
    """Returns the characters of symbols without white space around them."""
    places = np.arange(len(text) + 1)
    is_space = np.fromiter((*map(str.isspace, text), False), np.bool_)
    following = np.minimum.accumulate(np.where(is_space, len(text), places)[::-1])[::-1]
    ended = np.maximum.accumulate(np.append(0, np.where(is_space[:-1], 0, places[1:])))
    starts = np.minimum(following[offsets[:, 0]], offsets[:, 1])
    return np.stack([starts, np.maximum(starts, ended[offsets[:, 1]])], axis=1)


class TokenizerConfig(Config):
    """Base of every tokenizer's config; the table TOKENIZERS lists the kinds. ``learned``: whether it depends on a
    text, so that it is kept in the cache. ``builds``: the kind of the tokenizers that it builds; None: not known."""

    learned: ClassVar[bool] = True
    builds: ClassVar[str | None] = None

    @property
    def first_bytes(self) -> int | None:
        """Hook: the bytes of the first documents that it learns from; None where it learns from all parts."""
        return None

    def build(self, documents: Documents | Iterable[Document]) -> Tokenizer:
        """Makes the tokenizer, from the train split where it needs a text to learn from. Raises DataError."""
        raise NotImplementedError


def spaced(words: Sequence[str]) -> list[str]:
    """Returns the words of a sentence, each but the first with the space before it."""
    return [f" {word}" if number else word for number, word in enumerate(words)]


def encode_document(tokenizer: Tokenizer, document: Document) -> Symbols:
    """Returns the symbols of a document. Raises DataError, which names the byte, where it is not UTF-8."""
    try:
        return tokenizer.encode(document.text)
    except UnicodeDecodeError as error:
        raise _undecodable(document, error) from None


def _undecodable(document: Document, error: UnicodeDecodeError) -> DataError:
    """Returns the error for a document that is not UTF-8."""
    place = f"{document.name.rpartition('@')[0] or document.name if document.offset else document.name}"
    return DataError(
        f"{place}: byte {document.offset + error.start} is not UTF-8 ({error.reason}); "
        "set data.tokenizer.errors=replace, or data.tokenizer=bytes"
    )


@contextmanager
def learned_texts(
    kind: str,
    documents: Documents | Iterable[Document],
    errors: Errors,
    beginning: int | None = None,
    sample: int | None = None,
) -> Iterator[Iterator[str]]:
    """Gives the texts that a tokenizer of a kind learns from, and shows on stderr how far it is as long as it learns.

    beginning: the first documents, which reach this number of bytes. sample: about this number of bytes from all parts,
    if there is no ``beginning``; without both, all documents. Raises DataError, which names the byte, for a document
    that is not UTF-8.
    """
    limit, total = beginning or sample, bytes_of(documents)
    expected = total if limit is None else limit if total is None else min(limit, total)
    if beginning is not None:
        documents = first(documents, beginning)
    elif sample is not None:
        documents = sampled(documents, sample)
    with learning(kind, expected) as progress:
        yield _texts(progress.counted(documents), errors)


def _texts(documents: Iterable[Document], errors: Errors) -> Iterator[str]:
    for document in documents:
        try:
            yield document.text.decode(errors=errors)
        except UnicodeDecodeError as error:
            raise _undecodable(document, error) from None


class BytesConfig(TokenizerConfig, kind="bytes"):
    """Every byte is a symbol: nothing is learned, and nothing is unknown."""

    learned: ClassVar[bool] = False
    builds: ClassVar[str | None] = "bytes"

    def build(self, documents: Documents | Iterable[Document]) -> Bytes:
        return Bytes()


class Bytes(Tokenizer, kind="bytes"):
    """Symbols 0 to 255 are the bytes."""

    keeps_symbols: ClassVar[bool] = False

    def __init__(self) -> None:
        self.vocabulary = Vocabulary(size=257, boundary=256, unit="byte", byte_lengths=(*(1,) * 256, 0))

    def encode(self, text: bytes) -> Symbols:
        return np.frombuffer(text, np.uint8)

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        lengths = [len(character.encode()) for character in text]
        starts = np.repeat(np.arange(len(text)), lengths)
        return self.encode(text.encode()), trimmed(text, np.stack([starts, starts + 1], axis=1))

    def decode(self, symbols: Iterable[int]) -> str:
        return bytes(symbol for symbol in symbols if symbol < 256).decode(errors="replace")

    def to_dict(self) -> dict[str, Plain]:
        return {"kind": self.kind}


class CharactersConfig(TokenizerConfig, kind="characters"):
    """The characters of the train split, and one symbol for all others. errors: how undecodable bytes are treated."""

    builds: ClassVar[str | None] = "characters"

    errors: Errors = "strict"

    def build(self, documents: Documents | Iterable[Document]) -> Characters:
        seen = np.zeros(0x110000, np.bool_)
        with learned_texts(self.kind, documents, self.errors) as texts:
            for text in texts:
                seen[np.frombuffer(text.encode("utf-32-le"), np.uint32)] = True
        return Characters("".join(map(chr, np.flatnonzero(seen).tolist())), self.errors)


class Characters(Tokenizer, kind="characters"):
    """Symbol i is the character ``alphabet[i]``; the next symbol stands for every unknown character.

    An unknown character counts as one byte, the minimum, so that bits per byte are never underestimated.
    """

    keeps_symbols: ClassVar[bool] = False

    def __init__(self, alphabet: str, errors: Errors) -> None:
        self.alphabet, self.errors = alphabet, errors
        self.unknown = unknown = len(alphabet)
        lengths = (*(len(character.encode()) for character in alphabet), 1, 0)
        self.vocabulary = Vocabulary(size=unknown + 2, boundary=unknown + 1, unit="character", byte_lengths=lengths)
        self.symbols = np.full(0x110000, unknown, np.int32)
        self.symbols[[ord(character) for character in alphabet]] = np.arange(unknown)

    def encode(self, text: bytes) -> Symbols:
        points = np.frombuffer(text.decode(errors=self.errors).encode("utf-32-le"), np.uint32)
        return self.symbols[points]

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        starts = np.arange(len(text))
        return self.encode(text.encode()), trimmed(text, np.stack([starts, starts + 1], axis=1))

    def decode(self, symbols: Iterable[int]) -> str:
        letters = f"{self.alphabet}\ufffd"
        return "".join(letters[symbol] for symbol in symbols if symbol < len(letters))

    def to_dict(self) -> dict[str, Plain]:
        return {"kind": self.kind, "alphabet": self.alphabet, "errors": self.errors}


class WordsConfig(TokenizerConfig, kind="words"):
    """The words of the train split between white space; a line end is the word <eos>.

    minimum       rarer words become <unk>
    size          number of words, the most frequent ones, with <unk> and <eos>; None for all
    sample_bytes  words are counted in a sample of about this number of bytes, from all parts of the train split; None:
                  in the whole split
    """

    builds: ClassVar[str | None] = "words"

    minimum: Positive = 1
    size: Annotated[int, Field(ge=3)] | None = None
    sample_bytes: Positive | None = None
    errors: Errors = "strict"

    def build(self, documents: Documents | Iterable[Document]) -> Words:
        special = {UNKNOWN: 0, LINE_END: 0}
        with (
            word_counts() as counts,
            learned_texts(self.kind, documents, self.errors, None, self.sample_bytes) as texts,
        ):
            for text in texts:
                counts.add(_split(text))
            total, ranked = 0, list[tuple[str, int]]()
            for word, count in counts.items():
                total += count
                if word in special:
                    special[word] = count
                elif count >= self.minimum:
                    ranked.append((word, count))
        frequent = sorted(ranked, key=_by_frequency)
        frequent = frequent if self.size is None else frequent[: self.size - len(special)]
        unknown_count = total - sum(count for _, count in frequent) - special[LINE_END]
        # Frequent words first: the adaptive softmax defines its clusters by symbol number.
        counted_words = [*frequent, (UNKNOWN, unknown_count), (LINE_END, special[LINE_END])]
        return Words([word for word, _ in sorted(counted_words, key=_by_frequency)], self.errors)


def _by_frequency(item: tuple[str, int]) -> tuple[int, str]:
    """Returns the rank of a counted word: the more frequent one first, equally frequent ones by their letters."""
    return -item[1], item[0]


def _split(text: str) -> list[str]:
    return text.replace("\n", f" {LINE_END} ").split()


class Words(Tokenizer, kind="words"):
    """Symbol i is ``words[i]``, the most frequent first."""

    def __init__(self, words: list[str], errors: Errors) -> None:
        self.words, self.errors = words, errors
        self.symbols = {word: symbol for symbol, word in enumerate(words)}
        self.unknown = self.symbols[UNKNOWN]
        self.vocabulary = Vocabulary(size=len(words) + 1, boundary=len(words), unit="word", byte_lengths=None)

    def encode(self, text: bytes) -> Symbols:
        get, unknown = self.symbols.get, self.unknown
        return np.array([get(word, unknown) for word in _split(text.decode(errors=self.errors))], np.int32)

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        spans = [match.span() for match in re.finditer(r"\n|\S+", text)]
        return self.encode(text.encode()), trimmed(text, np.array(spans, np.int64).reshape(-1, 2))

    def decode(self, symbols: Iterable[int]) -> str:
        words = " ".join(self.words[symbol] for symbol in symbols if symbol < len(self.words))
        return re.sub(f" ?{LINE_END} ?", "\n", words)

    def continuing(self) -> npt.NDArray[np.bool_]:
        return np.zeros(self.vocabulary.size, np.bool_)

    def to_dict(self) -> dict[str, Plain]:
        return {"kind": self.kind, "words": self.words, "errors": self.errors}


class BPEConfig(TokenizerConfig, kind="bpe"):
    """Byte-level byte-pair encoding (arXiv:1508.07909; over bytes as in GPT-2), learned on the train split.

    size          number of pieces, the 256 bytes included
    sample_bytes  the merges are learned on about this number of bytes of text from all parts of the train split, drawn
                  by a fixed seed, and on the whole split if it has no more
    train_bytes   the merges are learned on the first documents of the train split instead, as many as reach this number
                  of bytes, so that later languages or topics of a sorted split are missed; None: on a sample
    """

    builds: ClassVar[str | None] = "bpe"

    size: Annotated[int, Field(ge=257)] = 8192
    sample_bytes: Positive = SAMPLE_BYTES
    train_bytes: Positive | None = None
    errors: Errors = "strict"

    @property
    def first_bytes(self) -> int | None:
        return self.train_bytes

    def build(self, documents: Documents | Iterable[Document]) -> BPE:
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        model = Model(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=self.size, initial_alphabet=alphabet, show_progress=False)
        with learned_texts(self.kind, documents, self.errors, self.train_bytes, self.sample_bytes) as texts:
            model.train_from_iterator(texts, trainer)
        # The library complains when a process that has used its threads forks, as data loaders do.
        encode_in_this_thread()
        return BPE(model.to_str(), self.errors)


class BPE(Tokenizer, kind="bpe"):
    """``model``: the JSON of the Hugging Face tokenizer."""

    def __init__(self, model: str, errors: Errors) -> None:
        from tokenizers import Tokenizer as Model

        self.serialised, self.errors = model, errors
        self.model = Model.from_str(model)
        self.encoded = EncodedWords(self.model, json.loads(model))
        size = self.model.get_vocab_size()
        # Every character of a byte-level piece stands for one byte.
        lengths = [len(self.model.id_to_token(symbol) or "") for symbol in range(size)]
        self.vocabulary = Vocabulary(size=size + 1, boundary=size, unit="piece", byte_lengths=(*lengths, 0))

    def encode(self, text: bytes) -> Symbols:
        return self.encoded.encode(text.decode(errors=self.errors))

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        return self.encoded.encode_texts(texts)

    def encode_words(self, words: Sequence[str]) -> list[Symbols]:
        encode_in_this_thread()
        return [np.array(encoded.ids, np.int32) for encoded in self.model.encode_batch_fast(spaced(words))]

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        return _with_offsets(self.model, text)

    def decode(self, symbols: Iterable[int]) -> str:
        boundary = self.vocabulary.boundary
        return str(self.model.decode([symbol for symbol in symbols if symbol != boundary]))

    def continuing(self) -> npt.NDArray[np.bool_]:
        return _without_prefix(self.model, self.vocabulary, BYTE_LEVEL_SPACES)

    def to_dict(self) -> dict[str, Plain]:
        return {"kind": self.kind, "model": self.serialised, "errors": self.errors}


def _with_offsets(model: Any, text: str) -> tuple[Symbols, Offsets]:
    """Returns the symbols of a text by a Hugging Face tokenizer, with the characters of each."""
    encoded = model.encode(text, add_special_tokens=False)
    return np.array(encoded.ids, np.int32), trimmed(text, np.array(encoded.offsets, np.int64).reshape(-1, 2))


BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")
"""The first characters of byte-level pieces that begin with a space, a line end, a tab or a carriage return."""


def _without_prefix(model: Any, vocabulary: Vocabulary, prefixes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Returns, for every symbol, whether its piece begins with none of ``prefixes``; symbols without a piece do not."""
    pieces = [model.id_to_token(symbol) for symbol in range(vocabulary.size)]
    return np.array([piece is not None and not piece.startswith(prefixes) for piece in pieces])


class WordPieceConfig(TokenizerConfig, kind="wordpiece"):
    """WordPiece as in BERT (arXiv:1810.04805, section 3), learned on the train split with BERT's way to cut text into
    words: at white space and punctuation. White space is not kept, so that bits per byte cannot be known.

    size          number of pieces, [UNK] included, which stands for a word with a character that was never seen
    lowercase     whether text is lower-cased and loses its accents, as for the uncased models of BERT
    sample_bytes  as of ``bpe``: the text from all parts of the train split that the pieces are learned on
    train_bytes   as of ``bpe``: the pieces are learned on the first documents instead; None: on a sample
    """

    builds: ClassVar[str | None] = "pieces"

    size: Annotated[int, Field(ge=8)] = 8192
    lowercase: bool = True
    sample_bytes: Positive = SAMPLE_BYTES
    train_bytes: Positive | None = None
    errors: Errors = "strict"

    @property
    def first_bytes(self) -> int | None:
        return self.train_bytes

    def build(self, documents: Documents | Iterable[Document]) -> PieceTokenizer:
        from tokenizers import trainers

        model = _word_pieces({"[UNK]": 0}, self.lowercase)
        trainer = trainers.WordPieceTrainer(vocab_size=self.size, special_tokens=["[UNK]"], show_progress=False)
        with learned_texts(self.kind, documents, self.errors, self.train_bytes, self.sample_bytes) as texts:
            model.train_from_iterator(texts, trainer)
        encode_in_this_thread()
        return _piece_tokenizer(model.to_str(), self.errors)


def _word_pieces(pieces: Mapping[str, int], lowercase: bool) -> Any:
    """Returns the Hugging Face tokenizer of these pieces by number, with BERT's normaliser and pre-tokenizer."""
    from tokenizers import Tokenizer as Model
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    model = Model(models.WordPiece(dict(pieces), unk_token="[UNK]"))
    model.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.decoder = decoders.WordPiece()
    return model


class PretrainedTokenizerConfig(TokenizerConfig, kind="pretrained"):
    """A tokenizer that somebody else has trained, with its special symbols, [CLS], [SEP] and [MASK] or <s>, </s>
    and <mask>, which are used as they are.

    path  a tokenizer.json of Hugging Face, or a vocab.txt of BERT, in which a line is a piece, and which is uncased
          where no piece has a capital letter; relative to LIT_DATA, to LIT_WEIGHTS or to the working folder
    """

    learned: ClassVar[bool] = False
    builds: ClassVar[str | None] = "pieces"

    path: str
    errors: Errors = "strict"

    def build(self, documents: Documents | Iterable[Document]) -> PieceTokenizer:
        path = locate(self.path, "tokenizer.path", ("LIT_DATA", "LIT_WEIGHTS"))
        tokenizer = _piece_tokenizer(_pretrained(path), self.errors)
        lacking = [name for name, names in SPECIAL_NAMES.items() if tokenizer.symbol(*names) is None]
        if lacking:
            raise DataError(
                f"{path}: has no symbol {' and no '.join(lacking)} (nor {', '.join(SPECIAL_NAMES[lacking[0]][1:])}); "
                "name the tokenizer of a masked language model in tokenizer.path"
            )
        return tokenizer


def tokenizer_of_folder(folder: Path) -> PieceTokenizer | None:
    """Returns the tokenizer whose files lie in a folder of Hugging Face, or of an import; None where there is none that
    can be read here."""
    for name in ("tokenizer.json", "vocab.txt"):
        if (folder / name).is_file():
            try:
                return _piece_tokenizer(_pretrained(folder / name), "strict")
            except (DataError, KeyError):
                continue
    return None


def _pretrained(path: Path) -> str:
    """Returns the JSON of a pretrained tokenizer. Raises DataError where the file holds none."""
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a tokenizer ({error}); correct data.tokenizer.path") from None
    return _serialised(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _serialised(path: Path, size: int, changed: int) -> str:
    """Returns the JSON of a pretrained tokenizer in a file of a size and a time."""
    from tokenizers import Tokenizer as Model

    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            serialised = str(Model.from_str(text).to_str())
            Model.from_str(serialised)  # the library cannot read all that it writes
            return serialised
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"{path}: cannot be read as a tokenizer ({error}); correct data.tokenizer.path") from None
    lines = text.removesuffix("\n").split("\n")  # a piece may be another character that ends a line
    if "[UNK]" not in lines:
        raise DataError(f"{path}: has no symbol [UNK], so it is no vocabulary of BERT; correct data.tokenizer.path")
    is_special = re.compile(r"\[[A-Z0-9]+\]").fullmatch
    is_cased = any(piece != piece.lower() and not is_special(piece) for piece in lines)
    return str(_word_pieces({piece: number for number, piece in enumerate(lines)}, not is_cased).to_str())


class PieceTokenizer(Tokenizer, kind="pieces"):
    """Pieces of words by a Hugging Face tokenizer. ``model``: its JSON.

    Where the model has the special symbols of a masked language model they are its ``specials``, and [CLS] is the
    boundary; where it has not, a boundary follows after its symbols.
    """

    def __init__(self, model: str, errors: Errors) -> None:
        from tokenizers import Tokenizer as Model

        self.serialised, self.errors = model, errors
        self.model = Model.from_str(model)
        self.model.no_padding()
        self.model.no_truncation()
        size = max(self.model.get_vocab().values()) + 1
        self.specials = self._own_specials()
        size, boundary = (size + 1, size) if self.specials is None else (size, self.specials.boundary)
        plain = json.loads(model)
        self.encoded, pieces = EncodedWords(self.model, plain), plain["model"]
        self.unknown = self.symbol(pieces["unk_token"]) if pieces.get("unk_token") else pieces.get("unk_id")
        self.vocabulary = Vocabulary(size=size, boundary=boundary, unit="piece", byte_lengths=None)

    def has_symbols_of(self, other: Tokenizer) -> bool:
        if self is other:
            return True
        return isinstance(other, PieceTokenizer) and self.model.get_vocab() == other.model.get_vocab()

    def _own_specials(self) -> Specials | None:
        boundary, separator, mask = (self.symbol(*names) for names in SPECIAL_NAMES.values())
        if boundary is None or separator is None or mask is None:
            return None
        added = self.model.get_added_tokens_decoder()
        others = [symbol for symbol, token in added.items() if token.special]
        others += [symbol for name in ("[PAD]", "[UNK]") if (symbol := self.symbol(name)) is not None]
        return Specials(boundary, separator, mask, frozenset([boundary, separator, mask, *others]))

    def symbol(self, *names: str) -> int | None:
        """Returns the symbol that has the first of these names; None where none has one."""
        symbols = (self.model.token_to_id(name) for name in names)
        return next((symbol for symbol in symbols if symbol is not None), None)

    def encode(self, text: bytes) -> Symbols:
        return self.encoded.encode(text.decode(errors=self.errors))

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        return self.encoded.encode_texts(texts)

    def encode_words(self, words: Sequence[str]) -> list[Symbols]:
        encode_in_this_thread()
        every = self.model.encode_batch_fast(spaced(words), add_special_tokens=False)
        return [np.array(encoded.ids, np.int32) for encoded in every]

    def encode_with_offsets(self, text: str) -> tuple[Symbols, Offsets]:
        return _with_offsets(self.model, text)

    def decode(self, symbols: Iterable[int]) -> str:
        without = {self.vocabulary.boundary} if self.specials is None else self.specials.all - {self.unknown}
        texts = [symbol for symbol in symbols if symbol not in without]
        return str(self.model.decode(texts, skip_special_tokens=False))

    def continuing(self) -> npt.NDArray[np.bool_] | None:
        plain = json.loads(self.serialised)
        continuing = plain["model"].get("continuing_subword_prefix")
        if plain["model"]["type"] == "WordPiece" and continuing:
            pieces = [self.model.id_to_token(symbol) for symbol in range(self.vocabulary.size)]
            return np.array([piece is not None and piece.startswith(continuing) for piece in pieces])
        cut = json.dumps(plain["pre_tokenizer"])
        spaces = BYTE_LEVEL_SPACES if '"ByteLevel"' in cut else ("▁",) if '"Metaspace"' in cut else ()
        return _without_prefix(self.model, self.vocabulary, spaces) if spaces else None

    def to_dict(self) -> dict[str, Plain]:
        return {"kind": self.kind, "model": self.serialised, "errors": self.errors}

    @classmethod
    def restored(cls, plain: Mapping[str, Plain]) -> PieceTokenizer:
        return _piece_tokenizer(**plain) if cls is PieceTokenizer else cls(**plain)


@lru_cache(maxsize=8)
def _piece_tokenizer(model: str, errors: Errors) -> PieceTokenizer:
    """Returns the tokenizer of a JSON, the same to all that read it: to read a large vocabulary takes half a second."""
    return PieceTokenizer(model, errors)


def tokenizer_from_dict(plain: Mapping[str, Plain]) -> Tokenizer:
    """Makes a tokenizer from its ``to_dict``. Raises DataError for anything else, and where a plug-in that has its
    class is not loaded."""
    fields = dict(plain)
    kind = fields.pop("kind", None)
    try:
        return Tokenizer.kinds[str(kind)].restored(fields)
    except (KeyError, TypeError):
        raise DataError(
            f"tokenizer: not the description of one (kind {kind!r}); there are {', '.join(Tokenizer.kinds)}, and those "
            "of plug-ins that are named with --plugin"
        ) from None


def key_of(part: Tokenizer | TokenizerConfig) -> dict[str, Plain]:
    """Returns the identity of a tokenizer, or its config, in the keys of caches: its plain data and, of a class from
    outside of this package, a hash of its module and of the modules of its project that it imports."""
    code = code_from_outside(type(part).__module__)
    return part.to_dict() if code is None else part.to_dict() | {"code": code}


@final
@dataclass(frozen=True)
class DecodedText(Detokenizer):
    """Decodes symbols by a tokenizer. Symbols that it does not have, such as sentinels, stand for no text and are left
    out."""

    tokenizer: Tokenizer

    def __call__(self, symbols: Sequence[int]) -> str:
        return self.tokenizer.decode([symbol for symbol in symbols if symbol < self.tokenizer.vocabulary.size])

    def to_dict(self) -> dict[str, Plain]:
        return {"tokenizer": self.tokenizer.to_dict()}

    @classmethod
    def restored(cls, plain: Mapping[str, Plain]) -> Self:
        return cls(tokenizer_from_dict(plain["tokenizer"]))


def cached_tokenizer(config: TokenizerConfig, documents: Documents | Iterable[Document], corpus: str) -> Tokenizer:
    """Returns the tokenizer of a corpus, from the cache or made now. ``corpus``: its fingerprint. Of several processes
    that make it at once, all return that of the first."""
    if not config.learned:
        return config.build(documents)
    path = cache_folder() / "tokenizers" / f"{canonical_hash([key_of(config), corpus], 32)}.json"
    if not path.exists():
        keep(path, config.build(documents).to_dict())
    return _load(path)


def _load(path: Path) -> Tokenizer:
    try:
        return tokenizer_from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged cache ({error}); remove this file and it is made again") from None
