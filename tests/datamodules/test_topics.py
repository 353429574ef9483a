"""Text with topics, agreement and an order, and the worth of each of them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from generated_documents import check_every_field, documents

from datamodules import TopicsConfig
from datamodules.core.documents import SPLITS
from lit_transformers.config import ConfigError

SMALL = TopicsConfig(openers=3, forms=4, topics=2, words=8, sentences=5, documents=60, validation=0.2, test=0.2)


def sentences(config: TopicsConfig, number: int) -> list[list[str]]:
    return [line.split() for line in config.document(number).decode().splitlines()]


def entropy(counts: Counter[Any]) -> float:
    return -sum(count / counts.total() * math.log2(count / counts.total()) for count in counts.values())


def conditional_entropy(pairs: Counter[tuple[Any, Any]]) -> float:
    """The entropy of the first given the second, in bits."""
    given: Counter[Any] = Counter()
    for (_, known), count in pairs.items():
        given[known] += count
    return entropy(pairs) - entropy(given)


def test_what_is_known_is_worth_what_frequencies_in_documents_say() -> None:
    config = SMALL.override({"sentences": 400})
    words: Counter[str] = Counter()
    by_document: Counter[tuple[str, int]] = Counter()
    endings: Counter[tuple[str, str]] = Counter()
    subjects: Counter[tuple[str, str]] = Counter()
    for number in range(80):
        for sentence in sentences(config, number):
            assert len(sentence) == 5 + 3
            words.update(sentence)
            by_document.update((word, number) for word in sentence[2:-1])
            endings[sentence[-1], sentence[1]] += 1
            subjects[sentence[1], sentence[-1]] += 1
    known = config.known_masked_losses()
    losses = [*known.values()]
    assert losses == sorted(losses, reverse=True) and len(words) == 3 + 4 + 4 + 8
    assert known["frequencies of words"] == pytest.approx(entropy(words), abs=0.01)
    opener, form = math.log2(3), math.log2(4)
    assert known["places in the sentence"] == pytest.approx((opener + 2 * form + 5 * 3) / 8)
    content = 5 * conditional_entropy(by_document)
    assert known["topic"] == pytest.approx((opener + 2 * form + content) / 8, abs=0.01)
    agreeing = conditional_entropy(endings) + conditional_entropy(subjects)
    assert known["agreement"] == pytest.approx((opener + agreeing + content) / 8, abs=0.01)
    assert known["order of sentences"] == pytest.approx((agreeing + content) / 8, abs=0.01)


def test_openers_advance_from_sentence_to_sentence_and_each_begins_documents() -> None:
    firsts = set()
    following: dict[str, set[str]] = {}
    for number in range(30):
        openers = [sentence[0] for sentence in sentences(SMALL, number)]
        firsts.add(openers[0])
        for before, after in pairwise(openers):
            following.setdefault(before, set()).add(after)
    assert len(firsts) == len(following) == 3 and all(len(after) == 1 for after in following.values())
    assert {word for after in following.values() for word in after} == firsts


def test_a_document_has_words_of_one_topic_and_the_share_of_others() -> None:
    config = SMALL.override({"sentences": 200, "focus": 1.0, "agreement": 1.0})
    vocabularies = {frozenset(word for s in sentences(config, number) for word in s[2:-1]) for number in range(12)}
    assert sorted(map(len, vocabularies)) == [4, 4] and not frozenset.intersection(*vocabularies)
    pairs = {(sentence[1], sentence[-1]) for number in range(12) for sentence in sentences(config, number)}
    assert len(pairs) == 4, "each subject has one ending"
    mixed = [word for s in sentences(config.override({"focus": 0.6}), 0) for word in s[2:-1]]
    topic = max(vocabularies, key=lambda words: sum(word in words for word in mixed))
    assert sum(word in topic for word in mixed) / len(mixed) == pytest.approx(0.6 + 0.4 / 2, abs=0.05)


def test_every_document_is_in_one_split_and_the_same_again() -> None:
    texts = documents(SMALL)
    assert len(texts) == 60 and len(set(texts.values())) == 60
    assert set(Counter(name.split()[0] for name in texts)) == set(SPLITS)
    assert texts == documents(SMALL)


def test_every_field_changes_documents_splits_and_the_fingerprint() -> None:
    changed_values = {
        "piece": 4096, "openers": 4, "forms": 5, "agreement": 0.3, "topics": 4, "words": 10, "focus": 0.2, "content": 4,
        "sentences": 6, "documents": 61, "seed": 1, "validation": 0.3, "test": 0.3,
    }  # fmt: skip
    check_every_field(SMALL, changed_values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": 9}, "9 words cannot be shared equally by 2 topics; make them a multiple"),
        ({"sentences": 10_000}, "400000 bytes are no document of at most 262144; set piece"),
        ({"validation": 0.5, "test": 0.5}, "leave nothing to train on"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL.override(changes)


def test_a_minimal_pair_has_one_text_of_the_source_and_one_with_a_single_fault() -> None:
    whole = SMALL.override({"sentences": 400, "focus": 1.0, "agreement": 1.0})
    lines = [sentences(whole, number) for number in range(12)]
    following = {(a[0], b[0]) for document in lines for a, b in pairwise(document)}
    agreeing = {(sentence[1], sentence[-1]) for document in lines for sentence in document}
    topics = {frozenset(word for sentence in document for word in sentence[2:-1]) for document in lines}

    def faults(text: bytes) -> dict[str, int]:
        split = [line.split() for line in text.decode().splitlines()]
        assert [len(sentence) for sentence in split] == [8] * 3
        return {
            "agreement": sum((sentence[1], sentence[-1]) not in agreeing for sentence in split),
            "order": sum((a[0], b[0]) not in following for a, b in pairwise(split)),
            "topic": min(sum(word not in topic for s in split for word in s[2:-1]) for topic in topics),
        }

    texts = set()
    for number in range(40):
        for rule, (obeys, breaks) in SMALL.minimal_pairs(number).items():
            assert faults(obeys) == dict.fromkeys(("agreement", "order", "topic"), 0)
            broken = faults(breaks)
            assert broken.pop(rule) >= 1 and not any(broken.values()), rule
            texts.add(breaks)
    assert len(texts) == 120, "every number has others"
