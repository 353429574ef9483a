"""Sentences whose words have tags: columns, CoNLL-U, splits by files, pieces of words; errors name the line."""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import ConllConfig, DataError, LabelledDataConfig
from datamodules.core.tokenizers import Bytes, PieceTokenizer, Tokenizer, _word_pieces
from datamodules.core.trained import TrainedSymbols
from datamodules.floors.measure import floors
from datamodules.labelled.tagged_sentences import TaggedSentences, stored_pairs, word_pieces
from lit_transformers.batch import IGNORED, LABEL, LabelledBatch
from lit_transformers.config import ConfigError

TRAIN = "In\tO\nNew\tB-place\nYork\tI-place\n\nAda\tB-name\nsleeps\tO\n\t\n#\tO\nAda\tB-name\n"
DEV = "Ada\tB-name\nsaw\tO\nParis\tB-place\n\n"
TREES = """# sent_id = 1
# text = don't go
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\t_\t_\t_\t_\t_\t_
3\t1 000\tgo\tVERB\tVB\tMood=Imp\t0\troot\t_\t_

"""


def written(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """A folder with files, compressed as their names say."""
    folder.mkdir(exist_ok=True)
    openers = {".gz": gzip.compress, ".xz": lzma.compress}
    for name, content in (files or {"train.conll": TRAIN, "dev.conll.xz": DEV}).items():
        data = content.encode()
        (folder / name).write_bytes(openers.get(Path(name).suffix, bytes)(data))
    return folder


def read(folder: Path, **fields: Any) -> TaggedSentences:
    return ConllConfig(path=str(folder), **fields).build()


def pairs(sentences: TaggedSentences, split: Any = "train") -> list[list[tuple[str, str]]]:
    return [stored_pairs(document.text) for document in sentences.corpus.documents(split)]


def test_a_line_is_a_word_and_its_tag_and_an_empty_line_ends_a_sentence(tmp_path: Path) -> None:
    sentences = read(written(tmp_path))
    assert pairs(sentences) == [
        [("In", "O"), ("New", "B-place"), ("York", "I-place")],
        [("Ada", "B-name"), ("sleeps", "O")],
        [("#", "O"), ("Ada", "B-name")],
    ]
    assert pairs(sentences, "validation") == [[("Ada", "B-name"), ("saw", "O"), ("Paris", "B-place")]]
    assert sentences.names[LABEL] == ["O", "B-name", "B-place", "I-place"] and sentences.scheme == "IOB2"
    assert [sentences.name("train", number) for number in range(3)] == [f"train.conll:{line}" for line in (1, 5, 8)]
    spaced = "-DOCSTART- -X- O\n\nNew NNP B-place\nYork NNP I-place\n\n% no word\nAda NNP B-name\n"
    folder = written(tmp_path / "spaces", {"train.txt": spaced, "valid.txt.gz": "Ada NNP B-name\n. . O\n"})
    by_space = read(folder, comment="%")
    assert pairs(by_space) == [[("New", "B-place"), ("York", "I-place")], [("Ada", "B-name")]]
    assert pairs(read(folder, comment="%", word=2, label=1, labels=("New", "York", "Ada", ".")))[1] == [("NNP", "Ada")]
    assert by_space.reading_messages() == ["1 lines -DOCSTART- omitted"]


def test_multiword_tokens_and_empty_nodes_of_conllu_are_no_words(tmp_path: Path) -> None:
    folder = written(tmp_path, {"train.conllu": TREES, "dev.conllu": TREES.replace("1 000", "2 000")})
    sentences = read(folder)
    assert pairs(sentences) == [[("do", "AUX"), ("n't", "PART"), ("1 000", "VERB")]] and sentences.scheme is None
    assert sentences.reading_messages() == ["4 multiword tokens and empty nodes omitted, since they are not words"]
    assert [tag for _, tag in pairs(read(folder, label="FEATS"))[0]] == ["_", "_", "Mood=Imp"]
    named = "# global.columns = FORM SENSE\na\tx\n\n"
    plus = written(tmp_path / "plus", {"train.tsv": named, "dev.tsv": named.replace("x", "y")})
    assert pairs(read(plus, word="FORM", label="SENSE"), "validation") == [[("a", "y")]]


def test_splits_are_files_by_name_or_a_hash_of_the_words(tmp_path: Path) -> None:
    folder = written(tmp_path, {"a.conllu.xz": TREES, "b.conllu": TREES * 2, "c.conllu": "nothing"})
    sentences = read(folder, train_files=("a.conllu",), validation_files=("a.conllu", "b.conllu"))
    assert [sentences.count(split) for split in ("train", "validation", "test")] == [1, 3, 3]
    assert "3 of 3 texts of validation stand in train too" in sentences.reading_messages()
    one = "".join(f"w{number % 40}\tt{number % 2}\n\n" for number in range(120))
    by_hash = read(written(tmp_path / "one", {"all.conll": one}), splits="hash", validation=0.3, test=0.2)
    texts = [{str(own) for own in pairs(by_hash, split)} for split in ("train", "validation", "test")]
    assert all(texts) and not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
    with pytest.raises(
        DataError, match=r"no sentence in the split 'validation' .*; correct data.source.validation_file"
    ):
        read(folder, train_files=("a.conllu",), validation_files=("none",))
    with pytest.raises(ConfigError, match="train_files and validation_files are needed together"):
        ConllConfig(path="x", train_files=("a",))


FAULTS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "column": ({"train.conll": "a\tO\nb\n"}, {}, r"train.conll:2: 1 column; correct the line, data.source.label"),
    "number": (
        {},
        {"label": 3},
        r"dev.conll.xz:1: 2 columns, and none of number 3; correct the line",
    ),
    "name": ({}, {"label": "NER"}, r"dev.conll.xz:1: no column 'NER'; its columns have no names, so give a number"),
    "name of UD": (
        {"dev.conll.xz": "", "train.conllu": TREES},
        {"label": "UPO"},
        r"train.conllu:4: no column 'UPO'; .*UPOS",
    ),
    "empty word": ({"train.conll": "\tO\n"}, {}, r"train.conll:1: the column of the word is empty"),
    "no words": ({"train.conllu": "# x\n1-2\tab\n\n"}, {}, r"train.conllu:3: ends a sentence without words; correct"),
    "no number": ({"train.conllu": "x\tab\n\n"}, {}, r"train.conllu:1: 'x' is not an ID of CoNLL-U"),
    "empty": ({"train.conll": ""}, {}, r"no sentence in the split 'train' .*; correct data.source.path"),
    "label": ({}, {"labels": ("O", "B-name")}, r"train.conll:2: the tag 'B-place' is not in data.source.labels; "),
    "broken": (
        {"train.conll": "a\tB-x\nb\tI-x\n# c\nd\tI-y\n"},
        {},
        r"train.conll:4: the tag I-y after I-x is in no entity of IOB2; correct the line, or set data.source.scheme to",
    ),
    "begins": (
        {"dev.conll.xz": "a\tI-name\n"},
        {},
        r"dev.conll.xz:1: the tag I-name at the beginning of a sentence",
    ),
    "scheme": (
        {},
        {"scheme": "IOBES", "label": 1},
        r"train.conll:1: the tag 'In' begins with no prefix of IOBES, I-, B-, E-, S-",
    ),
    "one tag": ({"train.conll": "a\tO\n", "dev.conll.xz": "a\tO\n"}, {}, r"every word has the tag 'O'; correct"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named_by_its_line(name: str, tmp_path: Path) -> None:
    files, fields, message = FAULTS[name]
    own = {"train.conll": TRAIN, "dev.conll.xz": DEV} | files
    if any(file.endswith("conllu") for file in files):
        del own["train.conll"]
    folder = written(tmp_path, own)
    with pytest.raises(DataError, match=message) as caught:
        read(folder, **fields)
    assert "\n" not in str(caught.value)


def test_tags_that_spell_no_entities_are_read_where_the_scheme_is_none_or_allows_them(tmp_path: Path) -> None:
    folder = written(tmp_path, {"train.conll": "a\tO\nb\tI-x\nc\tB-x\n", "dev.conll": "b\tI-x\na\tO\n"})
    assert read(folder, scheme="none").known == frozenset() and read(folder, scheme="IOB1").known == {"b", "c"}


def test_a_word_has_the_pieces_that_it_has_within_its_sentence(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Model
    from tokenizers import models, pre_tokenizers, trainers

    text = "In New York, Ada can't sleep: it's new."
    model = Model(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator([text] * 3, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    words = _word_pieces({"[UNK]": 0, "in": 1, "new": 2, "##s": 3, "ada": 4, "[CLS]": 5, "[SEP]": 6, "[MASK]": 7}, True)
    tokenizers: list[Tokenizer] = [PieceTokenizer(model.to_str(), "strict"), Bytes()]
    for tokenizer in (*tokenizers, PieceTokenizer(words.to_str(), "strict")):
        pieces = tokenizer.encode_words(text.split(" "))
        assert np.concatenate(pieces).tolist() == tokenizer.encode(text.encode()).tolist()
        assert len(pieces) == len(text.split(" "))
    assert [len(own) for own in Bytes().encode_words(["a", "b"])] == [1, 2], "the space belongs to the second word"


def test_a_word_without_pieces_is_unknown_and_words_beyond_the_row_are_counted() -> None:
    model = _word_pieces({"[UNK]": 0, "a": 1, "##b": 2, "[CLS]": 3, "[SEP]": 4, "[MASK]": 5}, True)
    tokenizer = PieceTokenizer(model.to_str(), "strict")
    pieces = word_pieces(tokenizer, ["a", "\u200d", "ab", "a"], 9)
    assert pieces.symbols.tolist() == [1, 0, 1, 2, 1] and pieces.words.tolist() == [1, 2, 3, 3, 4] and not pieces.cut
    short = word_pieces(tokenizer, ["a", "\u200d", "ab", "a"], 3)
    assert short.symbols.tolist() == [1, 0, 1] and short.words.tolist() == [1, 2, 3] and short.cut == 1


def test_a_batch_has_the_words_of_tokens_all_tags_and_which_entities_of_training_begin_with_a_word(
    tmp_path: Path,
) -> None:
    content = DEV + "New\tB-place\nYork\tI-place\nAda\tB-name\n"
    folder = written(tmp_path, {"train.conll": TRAIN, "dev.conll": content})
    data = LabelledDataConfig(source=ConllConfig(path=str(folder), length=10), batch_size=2, window=1).build()
    batch: LabelledBatch = next(iter(data.val_dataloader()))
    assert batch.words is not None
    assert bytes(batch.inputs[0, 1:9].tolist()) == b"Ada saw " and batch.inputs[0, 9] == 257
    assert batch.words[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 3, 0]
    assert batch.labels[0].tolist() == [[1, 1], [0, 0], [2, 0]]
    assert batch.labels[1].tolist() == [[2, 2], [3, 0], [1, 1]], "New York, and Ada, which is beyond the row"
    assert batch.words[1].max() == 2
    assert "1 of 6 words of validation are beyond the 10 symbols of a row" in " ".join(data.reading_messages())
    padding = data.description.labels.tensor([None], 4)
    assert padding.tolist() == [[[IGNORED, IGNORED]]]


def test_sentences_are_read_with_the_tags_of_a_trained_network(tmp_path: Path) -> None:
    folder = written(tmp_path)
    trained = TrainedSymbols(Bytes().to_dict(), labels=["I-place", "B-place", "O", "B-name"])
    data = LabelledDataConfig(source=ConllConfig(path=str(folder))).build()
    data.examples.read_as(trained)
    assert [tag for tag, _ in data.examples.example("train", 0).label] == [2, 1, 0]
    with pytest.raises(DataError, match=r"the label 'B-name' was never trained; the network knows O, B-place, I-place"):
        data.examples.read_as(trained._replace(labels=["O", "B-place", "I-place"]))


def test_floors_are_the_most_frequent_tag_and_that_of_each_word(tmp_path: Path) -> None:
    data = LabelledDataConfig(source=ConllConfig(path=str(written(tmp_path))), batch_size=3, window=1).build()
    overall, of_word = "most frequent tag", "most frequent tag of each word"
    assert floors(data, "accuracy", 1) == {overall: 1 / 3, of_word: 2 / 3}
    assert floors(data, "f1", 1) == {overall: 0.0, of_word: pytest.approx(2 / 3)}
    assert floors(data, "seen_f1", 1)[of_word] == 1.0 and floors(data, "unseen_recall", 1)[of_word] == 0.0
    nats = floors(data, "nats", 1)
    tags = np.array([3, 2, 1, 1]) + 1  # of O, B-name, B-place and I-place in training
    shares = tags / tags.sum()
    assert nats[overall] == pytest.approx(-np.log(shares[[1, 0, 2]]).mean())
    ada = (1 + shares[1]) / 2  # as the first word of a row; the other one has the space before it
    assert nats[of_word] == pytest.approx(-(math.log(ada) + np.log(shares[[0, 2]]).sum()) / 3)
    with pytest.raises(DataError, match="no predictor of tags has a value of matthews"):
        floors(data, "matthews", 1)
