"""Text whose words tell the topic of their document, the place of their sentence and the form of each other.

It is our own instrument for masked language modelling: the topics, the agreement and the order that a network has
learned are read off in bits, because the value of each is known. Topics show whether one segment follows another, and
the order shows which of two comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import Corpus
from datamodules.core.index import index_corpus
from datamodules.text.sources import SourceConfig, generated_texts, nothing_left
from lit_transformers.config import Fraction, NonNegative, Positive

__all__ = ["TopicsConfig"]

VERSION = 1
"""Part of the key: changes when the same config gives other documents."""
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
Several = Annotated[int, Field(ge=2, le=1000)]
PAIR_SENTENCES = 3
"""Sentences of each document of a minimal pair."""

Integers = npt.NDArray[np.int64]


class TopicsConfig(SourceConfig, kind="topics"):
    """Documents of sentences, one a line, of four kinds of words, which share no word:

    - a sentence begins with an opener. Openers follow each other in a cycle, from sentence to sentence, and the first
      one of a document is any;
    - a subject follows, in one of several forms;
    - then come content words. Each is drawn from the document's topic, whose words belong to no other, or from all;
    - an ending comes last, in the form of the subject, or in any.

    openers      number of words in the cycle
    forms        number of forms, all equally frequent
    agreement    the share of endings that are in the form of their subject; the others are in a form drawn from all
    topics       number of topics, all equally frequent
    words        number of content words, all equally frequent in the corpus; each topic has equally many
    focus        the share of content words that are drawn from the topic; the others are drawn from all words
    content      content words of a sentence
    sentences    of a document
    documents    number in all splits together; validation, test: their shares, by a hash of a document's name
    seed         of the documents
    """

    generated: ClassVar[bool] = True

    openers: Several = 8
    forms: Several = 8
    agreement: Annotated[float, Field(ge=0, le=1)] = 0.9
    topics: Several = 8
    words: Several = 128
    focus: Annotated[float, Field(ge=0, le=1)] = 0.8
    content: Positive = 5
    sentences: Positive = 24
    documents: Positive = 2000
    seed: NonNegative = 0
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        if self.words % self.topics:
            yield f"{self.words} words cannot be shared equally by {self.topics} topics; make them a multiple"
        if (size := self.sentences * (self.content + 3) * 5) > self.piece:
            yield f"{size} bytes are no document of at most {self.piece}; set piece"
        yield from nothing_left(self.validation, self.test)

    def build(self) -> Corpus:
        texts = generated_texts("document", self.documents, self.document, self.validation, self.test)
        return index_corpus([VERSION, self.to_dict()], "topics-", self.piece, texts)

    def document(self, number: int) -> bytes:
        """Returns the sentences of one document."""
        random = np.random.default_rng([self.seed, number])
        return self._text(self._draw(random, self.sentences, self.agreement, self.focus))

    def minimal_pairs(self, number: int) -> Mapping[str, tuple[bytes, bytes]]:
        """Returns three sentences whose endings all agree and whose content words are all of one topic, each time with
        a copy that has one fault.

        agreement: an ending has another form. order: the openers of two sentences that follow each other are exchanged.
        topic: a content word is one of another topic.
        """
        random = np.random.default_rng([self.seed, number, PAIR_SENTENCES])
        words = self._draw(random, PAIR_SENTENCES, agreement=1.0, focus=1.0)
        agreement, order, topic = words.copy(), words.copy(), words.copy()
        sentence, place = int(random.integers(PAIR_SENTENCES)), 2 + int(random.integers(self.content))
        first_ending = self.openers + self.forms
        ending = words[sentence, -1] - first_ending
        agreement[sentence, -1] = first_ending + (ending + random.integers(1, self.forms)) % self.forms
        first = int(random.integers(PAIR_SENTENCES - 1))
        order[[first, first + 1], 0] = words[[first + 1, first], 0]
        row, own = divmod(int(words[sentence, place]) - first_ending - self.forms, self.topics)
        other = (own + int(random.integers(1, self.topics))) % self.topics
        topic[sentence, place] = first_ending + self.forms + row * self.topics + other
        faults = {"agreement": agreement, "order": order, "topic": topic}
        return {rule: (self._text(words), self._text(broken)) for rule, broken in faults.items()}

    def _text(self, words: Integers) -> bytes:
        """Returns sentences (s, w) of the numbers of words as lines."""
        return b"".join(" ".join(map(_word, row)).encode() + b"\n" for row in words.tolist())

    def _draw(self, random: np.random.Generator, count: int, agreement: float, focus: float) -> Integers:
        """Draws ``count`` sentences of one document (count, w), as numbers of words."""
        openers = (int(random.integers(self.openers)) + np.arange(count)) % self.openers
        subjects = random.integers(self.forms, size=count)
        agrees = random.random(count) < agreement
        endings = np.where(agrees, subjects, random.integers(self.forms, size=count))
        of_topic = random.integers(self.topics) + self.topics * random.integers(
            self.words // self.topics, size=(count, self.content)
        )
        is_focused = random.random(of_topic.shape) < focus
        content = np.where(is_focused, of_topic, random.integers(self.words, size=of_topic.shape))
        first = self._first_numbers()
        columns = [openers + first["opener"], subjects + first["subject"], content + first["content"]]
        columns.append(endings + first["ending"])
        return np.column_stack(columns)

    def _first_numbers(self) -> dict[str, int]:
        """Returns the number of the first word of each kind; kinds share no numbers."""
        first = np.cumsum([0, self.openers, self.forms, self.forms]).tolist()
        return dict(zip(("opener", "subject", "ending", "content"), first, strict=True))

    def phrases(self) -> dict[str, list[str]]:
        """Returns the words of each kind."""
        counts = (self.openers, self.forms, self.forms, self.words)
        return {
            kind: [_word(first + number) for number in range(count)]
            for (kind, first), count in zip(self._first_numbers().items(), counts, strict=True)
        }

    def known_masked_losses(self) -> dict[str, float]:
        """Returns the least possible mean loss of a hidden word in bits, by the knowledge of the predictor: each with
        all before it, and the last with all that there is to know.

        The topic and all other words of the document count as known. Less is known where a row is short or several
        words are hidden at once, so that these are bounds.
        """
        chance = (1 - self.agreement) / self.forms
        agreeing = -_information(self.agreement + chance) - (self.forms - 1) * _information(chance)
        others = (1 - self.focus) / self.words
        own = self.focus * self.topics / self.words + others
        share = self.words // self.topics
        of_topic = -share * _information(own) - (self.words - share) * _information(others)
        count = self.content + 3
        places = -sum(_information(words / count) for words in (1, 1, self.content, 1))
        opener, form, word = math.log2(self.openers), math.log2(self.forms), math.log2(self.words)

        def mean(opener: float, form: float, word: float) -> float:
            return (opener + 2 * form + self.content * word) / count

        return {
            "frequencies of words": places + mean(opener, form, word),
            "places in the sentence": mean(opener, form, word),
            "topic": mean(opener, form, of_topic),
            "agreement": mean(opener, agreeing, of_topic),
            "order of sentences": mean(0.0, agreeing, of_topic),
        }


def _information(probability: float) -> float:
    """Returns p log2 p, which is 0 at 0."""
    return probability * math.log2(probability) if probability else 0.0


def _word(number: int) -> str:
    """Returns the word of a number, two syllables of two letters."""
    first, second = divmod(number, len(SYLLABLES))
    return SYLLABLES[first % len(SYLLABLES)] + SYLLABLES[second]
