"""Questions on facts: answers are those of following texts by hand, and floors those of slow predictors."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from datamodules import DataError, FactsConfig, LabelledDataConfig
from datamodules.floors.measure import floors
from datamodules.labelled.facts import Facts
from lit_transformers.batch import GroupLabels, SpanLabels
from lit_transformers.config import ConfigError

SMALL = FactsConfig(entities=4, relations=3, questions=20, train=40, validation=9, test=5)
"""12 facts a passage; 12 questions of one hop and 36 of two."""


def read(source: Facts, ordinal: int, split: Any = "train") -> tuple[list[int], dict[tuple[int, int], int], str]:
    """The question by its numbers, the facts by where they lead, and the answer, all from the symbols and the text."""
    example, config = source.example(split, ordinal), source.config
    first = config.entities**2 * config.relations
    entity, *relations = (int(symbol) - first for symbol in example.symbols[:3])
    relations = [relation - config.entities for relation in relations]
    assert example.passage is not None and example.second == 4
    facts = {(int(a), int(r)): int(b) for a, r, b in re.findall(r"e(\d+)r(\d+)e(\d+)", example.passage.text)}
    start, stop = example.passage.spans[example.label[0] + 1]
    return [entity, *(r for r in relations if r < config.relations)], facts, example.passage.text[start:stop]


@pytest.mark.parametrize("hops", ["one", "two", "mixed"])
def test_every_answer_is_the_fact_that_the_hops_of_its_question_lead_to(hops: str) -> None:
    source = SMALL.override({"hops": hops, "questions": 10}).build()
    lengths = Counter[int]()
    for ordinal in range(200):
        (entity, *relations), facts, answer = read(source, ordinal)
        for relation in relations[:-1]:
            entity = facts[entity, relation]
        assert answer == f"e{entity}r{relations[-1]}e{facts[entity, relations[-1]]}"
        assert source.example("train", ordinal).passage.answers == (answer,)
        lengths[len(relations)] += 1
    assert lengths == {"one": {1: 200}, "two": {2: 200}, "mixed": {1: 100, 2: 100}}[hops]


def test_a_passage_has_each_fact_once_and_different_questions_and_its_symbols_spell_it() -> None:
    source, config = SMALL.build(), SMALL
    for first in range(0, 400, config.questions):
        rows = [source.example("train", first + number).symbols.tolist() for number in range(config.questions)]
        assert len({tuple(row[4:]) for row in rows}) == 1 and len({tuple(row[:3]) for row in rows}) == config.questions
        _, facts, _ = read(source, first)
        assert facts.keys() == {(a, r) for a in range(4) for r in range(3)} and all(
            a != b for (a, _), b in facts.items()
        )
        assert [(a * 3 + r) * 4 + b for (a, r), b in facts.items()] == rows[0][4:-1]
        assert rows[0][3] == rows[0][-1] == config.description.vocabulary.boundary - 1
    places = Counter(int(source.example("train", ordinal).label[0]) - 4 for ordinal in range(800))
    assert places.keys() == {*range(12)} and max(places.values()) < 2 * min(places.values())


def test_its_description_says_where_passages_begin_and_which_groups_there_are() -> None:
    mixed, two = SMALL.description, SMALL.override({"hops": "two"}).description
    assert mixed.question_width == 5 and mixed.length == 18 == len(SMALL.build().example("test", 0).symbols) + 1
    assert mixed.groups == ("one_hop", "two_hops") and two.groups == ()
    assert mixed.columns == {"group": GroupLabels(names=("one_hop", "two_hops"))} and two.columns == {}
    assert mixed.labels == SpanLabels() and type(mixed).from_dict(mixed.to_dict()) == mixed


def test_splits_and_seeds_have_other_passages_and_a_passage_is_always_the_same() -> None:
    def row(config: FactsConfig, split: Any) -> list[int]:
        return config.build().example(split, 0).symbols.tolist()

    other = SMALL.override({"seed": 1})
    rows = [row(SMALL, "train"), row(SMALL, "validation"), row(SMALL, "test"), row(other, "train")]
    assert len({*map(tuple, rows)}) == 4 and rows[0] == row(SMALL, "train") == PINNED
    assert SMALL.build().fingerprint == SMALL.build().fingerprint != other.build().fingerprint


def test_what_is_known_is_what_guesses_get() -> None:
    data = LabelledDataConfig(source=SMALL, batch_size=20)
    known = data.known_values()
    assert known is not None and known.metric == "two_hops_exact_match"
    alone = SMALL.override({"hops": "two"}).known_values()
    assert alone.metric == "exact_match" and alone.values == known.values == {
        "any fact": 100 / 12, "a fact of the last relation": 25.0, "every hop": 100
    }  # fmt: skip


def slow_lookup(data: Any, batches: int, group: int) -> float:
    """The exact match of the fact that answered the question in the largest share of the training rows that hold it."""
    held, answered, hits = Counter[Any](), Counter[Any](), list[float]()
    for batch in islice(data.train_dataloader(), batches):
        for row, (start, _) in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
            held.update((*row[:5], fact) for fact in row[5:-1])
            answered[(*row[:5], row[start])] += 1
    for batch in data.val_dataloader():
        for row, (start, _), own in zip(
            batch.inputs.tolist(), batch.labels.tolist(), batch.columns["group"].tolist(), strict=True
        ):
            if own == group:
                shares = {
                    f: answered[(*row[:5], f)] / held[(*row[:5], f)] if held[(*row[:5], f)] else 0 for f in row[5:-1]
                }
                best = [fact for fact, share in shares.items() if share == max(shares.values())]
                hits.append((row[start] in best) / len(best))
    return 100 * float(np.mean(hits))


def test_a_lookup_answers_one_hop_and_hardly_two() -> None:
    source = FactsConfig(entities=3, relations=2, questions=12, train=100, validation=20)
    data = LabelledDataConfig(source=source, batch_size=40, window=1).build()
    one, two = (floors(data, f"{name}_exact_match", 30) for name in ("one_hop", "two_hops"))
    lookup = "the fact that most often answered the question"
    assert one[lookup] == pytest.approx(slow_lookup(data, 30, 0)) and one[lookup] > 95
    assert two[lookup] == pytest.approx(slow_lookup(data, 30, 1)) and two[lookup] < 80
    assert two["any fact"] == 100 / 6 and two["a fact of the last relation"] == 100 / 3
    assert floors(data, "nats", 30) == {"all facts alike": pytest.approx(np.log(7))}
    with pytest.raises(DataError, match="no predictor of answers has a value of two_hops_accuracy"):
        floors(data, "two_hops_accuracy", 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"questions": 26},
            "questions: a passage allows 12 questions of one hop, not 13; lower questions, or raise entities",
        ),
        ({"hops": "two", "questions": 37}, "questions: a passage allows 36 questions of two hops, not 37"),
        ({"questions": 1}, "mixed hops need two questions; set questions to 2 or more"),
        ({"entities": 2}, "entities"),
    ],
)
def test_passages_that_cannot_be_are_refused_in_a_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        SMALL.override(changes)
    assert "\n" not in str(refused.value)


PINNED = [48, 54, 55, 56, 3, 6, 38, 9, 32, 23, 18, 31, 15, 25, 45, 41, 56]
