"""Labelled data give their training texts to pretraining, and none that they hold out."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from datamodules import (
    DataError,
    LabelledRecordsConfig,
    LabelledTrainingConfig,
    ListOpsConfig,
    RowDataConfig,
    SentencesConfig,
    WordsConfig,
)
from datamodules.core.documents import SPLITS
from datamodules.core.held_out import sentences_of, text_digest
from datamodules.core.index import IndexedCorpus

LABELS = ("0", "1")


def written(folder: Path, **splits: list[str]) -> LabelledRecordsConfig:
    """Labelled texts whose splits are files, with labels in turn."""
    folder.mkdir()
    for split, texts in splits.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, str(n % 2)) for n, text in enumerate(texts))])
    return LabelledRecordsConfig(path=str(folder), labels=LABELS, splits="folders")


def texts_of(corpus: IndexedCorpus) -> dict[str, list[str]]:
    return {
        split: [document.text.decode() for document in corpus.documents(split)] if corpus.count(split) else []
        for split in SPLITS
    }


def built(config: LabelledTrainingConfig) -> IndexedCorpus:
    corpus = config.build()
    assert isinstance(corpus, IndexedCorpus)
    return corpus


TRAINING = [f"text number {n} of the training" for n in range(60)]


def test_all_texts_of_training_are_read_without_labels_but_those_that_are_held_out(tmp_path: Path) -> None:
    """By their words: case, spaces and marks are no difference, another word is."""
    held_out = ["Seen here, and there.", "unseen"]
    repeated = ["seen here and THERE", "  Seen   here -- and there!", "seen here and there too"]
    data = written(
        tmp_path / "data", train=TRAINING + repeated, validation=held_out, test=["text Number 7 of the training"]
    )
    corpus = built(LabelledTrainingConfig(labelled=data, validation=0.2))
    texts = texts_of(corpus)
    assert {*texts["train"], *texts["validation"]} == {*TRAINING, repeated[2]} - {TRAINING[7]}
    assert texts["train"] and texts["validation"] and not texts["test"]
    assert corpus.messages == ["3 training texts omitted, since they are also held out"]
    rows = RowDataConfig(
        source=LabelledTrainingConfig(labelled=data, validation=0.2), tokenizer=WordsConfig(), length=16
    )
    assert "3 training texts omitted, since they are also held out" in rows.build().reading_messages()


def test_texts_with_a_sentence_of_a_held_out_text_are_omitted(tmp_path: Path) -> None:
    sentence, short = "Here is a sentence of eight words exactly.", "seven words are not enough for this"
    held_out = [f"At first another one! {sentence} {short}.", "five words are a text", "unseen"]
    shared = [f"Before it. {sentence.upper()} After it.", "First line\nfive words are a text\nlast line"]
    new = [f"Before it. {short}. After it.", "Is it unseen? unseen.", f"No end before {sentence}"]
    data = written(tmp_path / "data", train=TRAINING + shared + new, validation=held_out, test=["unseen"])
    texts = texts_of(built(LabelledTrainingConfig(labelled=data)))
    assert {*texts["train"], *texts["validation"]} == {*TRAINING, *new}
    assert sentences_of(b'One. "Two?" Three 1.5<br /><br />Four\n\nFive!') == [
        b"One.", b'"Two?', b"Three 1.5", b"Four", b"Five!"
    ]  # fmt: skip


def test_what_other_labelled_data_hold_out_is_left_out_too(tmp_path: Path) -> None:
    """Texts of the same domain may have those by which a task is tested among them."""
    data = written(tmp_path / "data", train=TRAINING, validation=["a"], test=["b"])
    task = written(tmp_path / "task", train=["of the task"], validation=[TRAINING[3]], test=[TRAINING[4].upper()])
    corpora = [built(LabelledTrainingConfig(labelled=data, held_out=held_out)) for held_out in ((), (task,))]
    assert [sum(map(len, texts_of(corpus).values())) for corpus in corpora] == [60, 58]
    assert corpora[0].fingerprint != corpora[1].fingerprint
    (tmp_path / "task" / "validation.csv").write_text("text,label\nanother,0\n")
    assert sum(map(len, texts_of(built(LabelledTrainingConfig(labelled=data, held_out=(task,)))).values())) == 59


def test_of_few_examples_the_texts_of_these_are_read(tmp_path: Path) -> None:
    data = written(tmp_path / "data", train=TRAINING, validation=["a"])
    few = data.override({"examples": 10})
    assert sum(map(len, texts_of(built(LabelledTrainingConfig(labelled=few))).values())) == 10


def test_examples_that_are_no_texts_are_refused_in_a_line() -> None:
    with pytest.raises(
        DataError, match=r"data\.source\.labelled: the examples of listops are not texts; name other data"
    ):
        LabelledTrainingConfig(labelled=ListOpsConfig()).build()


def test_digests_are_of_words() -> None:
    assert text_digest(b"It 's  good.") == text_digest("it’s good".encode()) != text_digest(b"its good")
    assert text_digest("ﬁne".encode()) == text_digest(b"FINE")
    assert text_digest(b"...") != text_digest(b"!!!"), "a text without words is known by its bytes"


@pytest.mark.skipif("LIT_DATA" not in os.environ, reason="LIT_DATA is not set")
@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["cola", "trec"])
def test_no_word_sequence_of_a_public_corpus_is_trained_on_that_it_holds_out(corpus: Any) -> None:
    """Against words that are found without regular expressions."""
    data = SentencesConfig(corpus=corpus)
    examples = data.build()

    def key(text: bytes) -> str:
        kept = (letter if letter.isalnum() or letter == "_" else " " for letter in text.decode().casefold())
        return " ".join("".join(kept).split())

    held_out = {key(one.text) for split in ("validation", "test") for one in examples.texts(split)}
    read = built(LabelledTrainingConfig(labelled=data))
    training = [key(document.text) for split in ("train", "validation") for document in read.documents(split)]
    assert not held_out & {*training}
    left_out = sum(read.left_out.values())
    assert len(training) + left_out == examples.count("train")
    assert left_out == sum(key(one.text) in held_out for one in examples.texts("train"))
