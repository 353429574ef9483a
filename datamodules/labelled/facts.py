"""Questions on generated passages of facts. One hop looks up a fact; two hops follow one fact to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.data import KnownValues
from datamodules.core.documents import SPLITS, Split
from datamodules.core.examples import FINGERPRINTED, Example, Examples, ExamplesConfig
from datamodules.core.trained import TrainedSymbols
from lit_transformers.batch import GROUP, GroupLabels, LabelledDescription, Passage, SpanLabels, Vocabulary
from lit_transformers.config import NonNegative, Plain, Positive, canonical_hash

__all__ = ["FactQuestion", "Facts", "FactsConfig"]

HOPS = ONE, TWO = "one_hop", "two_hops"
"""The groups of questions."""
QUESTION_WIDTH = 5
"""The tokens of a question with [CLS] and [SEP]."""
T = TypeVar("T")


class FactQuestion(NamedTuple):
    """A question: the entity that it begins with, and the relations that it follows from there."""

    entity: int
    relations: tuple[int, ...]


class FactsConfig(ExamplesConfig, kind="facts"):
    """Generated passages of facts, and several questions on each passage. A task of this suite.

    A fact (entity, relation, other entity) is one symbol. A passage holds one fact for every entity and relation, in
    random order. The answer to a question of one hop is the fact of its entity and relation. A question of two hops has
    two relations: the first leads from its entity to a second entity, and the answer is the fact of the second entity
    and the second relation.

    A row is [CLS] question [SEP] passage [SEP]. A question has three symbols: the entity, the first relation, and the
    second relation or a symbol for none. All passages therefore begin at the same place. The answer is a span of one
    symbol. With mixed hops, the groups ``one_hop`` and ``two_hops`` are measured separately.

    entities    number of entities; no fact leads from an entity to itself
    relations   number of relations
    hops        one, two, or mixed: half of the questions on a passage have one hop
    questions   number of different questions on each passage
    train       number of passages of training; ``validation`` and ``test`` likewise, drawn with other seeds
    seed        seed of all passages
    """

    entities: Annotated[int, Field(ge=3)] = 6
    relations: Positive = 2
    hops: Literal["one", "two", "mixed"] = "mixed"
    questions: Positive = 24
    train: Positive = 4_000
    validation: Positive = 50
    test: Positive = 50
    seed: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        for name, count in self.counts.items():
            most = len(self.possible(name))
            if count > most:
                reason = f"a passage allows {most} questions of {name.replace('_', ' ')}, not {count}"
                yield f"questions: {reason}; lower questions, or raise entities or relations"
        if self.hops == "mixed" and self.questions == 1:
            yield "questions: mixed hops need two questions; set questions to 2 or more, or hops to one or two"

    @property
    def counts(self) -> dict[str, int]:
        """The number of questions on a passage, by group."""
        if self.hops == "mixed":
            return {ONE: self.questions // 2, TWO: self.questions - self.questions // 2}
        return {ONE if self.hops == "one" else TWO: self.questions}

    def possible(self, hops: str) -> list[FactQuestion]:
        """Returns all possible questions of the group ``hops``."""
        paths = product(range(self.relations), repeat=HOPS.index(hops) + 1)
        return [FactQuestion(entity, path) for entity, path in product(range(self.entities), paths)]

    @property
    def symbols(self) -> FactSymbols:
        """The symbols of facts and questions."""
        return FactSymbols(self.entities, self.relations)

    @property
    def description(self) -> LabelledDescription:
        symbols = self.symbols
        vocabulary = Vocabulary(size=symbols.boundary + 1, boundary=symbols.boundary, unit="word", byte_lengths=None)
        return LabelledDescription(
            vocabulary=vocabulary,
            length=QUESTION_WIDTH + self.entities * self.relations + 1,
            labels=SpanLabels(),
            columns={GROUP: GroupLabels(names=HOPS)} if self.hops == "mixed" else {},
            segments=2,
            question_width=QUESTION_WIDTH,
        )

    def protocol(self) -> dict[str, Plain]:
        return {"validation": self.validation, "test": self.test, "questions on a passage": self.questions}

    def known_values(self) -> KnownValues:
        """Returns the exact match, in percent, of three ways to answer: a random fact of the passage, a random fact of
        the last relation of the question, and the fact that all hops lead to. With mixed hops, on questions of two
        hops."""
        metric = f"{TWO}_exact_match" if self.hops == "mixed" else "exact_match"
        any_fact, of_relation = 100 / (self.entities * self.relations), 100 / self.entities
        return KnownValues(metric, {"any fact": any_fact, "a fact of the last relation": of_relation, "every hop": 100})

    def build(self) -> Facts:
        return Facts(self)


class FactSymbols(NamedTuple):
    """The numbering of symbols. First facts, by entity, relation and other entity. Then the symbols of questions:
    entities, relations, and none in place of a second relation. Last [SEP] and [CLS]."""

    entities: int
    relations: int

    @property
    def first(self) -> int:
        """The first symbol after the symbols of facts."""
        return self.entities**2 * self.relations

    @property
    def none(self) -> int:
        """The symbol in place of a second relation."""
        return self.first + self.entities + self.relations

    @property
    def separator(self) -> int:
        """[SEP]."""
        return self.none + 1

    @property
    def boundary(self) -> int:
        """[CLS]."""
        return self.none + 2

    def fact(self, entity: int, relation: int, other: int) -> int:
        """Returns the symbol of a fact."""
        return (entity * self.relations + relation) * self.entities + other

    def question(self, question: FactQuestion) -> list[int]:
        """Returns the symbols of a question."""
        relations = [self.first + self.entities + relation for relation in question.relations]
        return [self.first + question.entity, *relations, *[self.none] * (2 - len(relations))]

    def text(self, fact: int) -> str:
        """Returns the text of a fact. Example: e3r1e5, from entity 3 by relation 1 to entity 5."""
        pair, other = divmod(fact, self.entities)
        return "e{}r{}e{}".format(*divmod(pair, self.relations), other)


class FactPassage(NamedTuple):
    """A passage. questions: each question with the number of the fact that answers it."""

    facts: tuple[int, ...]
    questions: tuple[tuple[FactQuestion, int], ...]


def drawn_passage(config: FactsConfig, chance: Random) -> FactPassage:
    """Draws a passage and its questions from the random numbers of ``chance``."""
    pairs = shuffled([*product(range(config.entities), range(config.relations))], chance)
    leads = {(entity, relation): another(entity, config.entities, chance) for entity, relation in pairs}
    questions = []
    for hops, count in config.counts.items():
        for question in shuffled(config.possible(hops), chance)[:count]:
            entity = question.entity
            for relation in question.relations[:-1]:
                entity = leads[entity, relation]
            questions.append((question, pairs.index((entity, question.relations[-1]))))
    return FactPassage(tuple(config.symbols.fact(*pair, leads[pair]) for pair in pairs), tuple(questions))


class Facts(Examples):
    """Questions on passages of facts. Passages are drawn when they are read, and not stored. Questions on the same
    passage have consecutive numbers.

    Python guarantees that ``Random.random`` gives the same numbers in every version.
    """

    def __init__(self, config: FactsConfig) -> None:
        self.config = config
        passages = [self.passage(split, number) for split in SPLITS for number in range(FINGERPRINTED)]
        self.fingerprint = self.content = f"facts-{canonical_hash([config.to_dict(), passages], 32)}"

    def count(self, split: Split) -> int:
        passages: int = self.config.get(split)
        return passages * self.config.questions

    def passage(self, split: Split, number: int) -> FactPassage:
        """Returns passage ``number`` of a split."""
        return drawn_passage(self.config, Random(f"{self.config.seed} {split} {number}"))

    def example(self, split: Split, ordinal: int) -> Example:
        symbols = self.config.symbols
        passage = self.passage(split, ordinal // self.config.questions)
        question, answer = passage.questions[ordinal % self.config.questions]
        row = [*symbols.question(question), symbols.separator, *passage.facts, symbols.separator]
        start = QUESTION_WIDTH - 1 + answer
        texts = [symbols.text(fact) for fact in passage.facts]
        text = Passage(" ".join(texts), fact_spans(texts, len(row) + 1), (texts[answer],))
        columns = {GROUP: len(question.relations) - 1} if self.config.hops == "mixed" else None
        label = (start, start + 1)
        return Example(np.array(row, np.int64), label, columns=columns, second=QUESTION_WIDTH - 1, passage=text)

    def name(self, split: Split, ordinal: int) -> str:
        passage, question = divmod(ordinal, self.config.questions)
        return f"{split}:{passage}.{question}"

    def trained_symbols(self) -> TrainedSymbols:
        config = self.config
        return TrainedSymbols(
            meanings={"kind": config.kind, "entities": config.entities, "relations": config.relations}
        )


def shuffled(items: Sequence[T], chance: Random) -> list[T]:
    """Returns the items in random order."""
    return sorted(items, key=lambda _: chance.random())


def another(entity: int, entities: int, chance: Random) -> int:
    """Returns a random entity different from ``entity``."""
    other = int(chance.random() * (entities - 1))
    return other + (other >= entity)


def fact_spans(texts: Sequence[str], length: int) -> npt.NDArray[np.int64]:
    """Returns the first character, and the one after the last, of each token (length, 2), in a passage whose facts are
    separated by spaces; 0 for tokens outside the passage."""
    stops = np.cumsum([len(text) + 1 for text in texts]) - 1
    spans = np.zeros((length, 2), np.int64)
    spans[QUESTION_WIDTH : length - 1, 0] = stops - [len(text) for text in texts]
    spans[QUESTION_WIDTH : length - 1, 1] = stops
    return spans
