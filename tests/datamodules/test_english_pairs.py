"""Minimal pairs of English: a sentence that obeys a rule, and one that breaks it and nothing else."""

from __future__ import annotations

import pytest

from datamodules import BooksConfig, WikitextConfig
from datamodules.text.english_pairs import DETERMINERS, NOUNS, VERBS

PAIRS = [BooksConfig().minimal_pairs(number) for number in range(200)]


def is_plural(noun: str) -> bool:
    assert noun in NOUNS or noun[:-1] in NOUNS
    return noun not in NOUNS


def agrees(sentence: list[str]) -> bool:
    """Whether the verb at the end has the number of the noun that is second."""
    return (sentence[-1] in VERBS) != is_plural(sentence[1])


def words_of(text: bytes) -> list[str]:
    words = text.decode().split()
    assert words[0][0].isupper() and words.pop() == "."
    return [words[0].lower(), *words[1:]]


@pytest.mark.parametrize("rule", ["agreement", "distant_agreement"])
def test_a_verb_agrees_with_its_subject_or_not(rule: str) -> None:
    numbers = set()
    for good, bad in (pairs[rule] for pairs in PAIRS):
        right, wrong = words_of(good), words_of(bad)
        assert agrees(right) and not agrees(wrong) and right[:-1] == wrong[:-1]
        numbers.add(is_plural(right[1]))
        if rule == "distant_agreement":
            assert is_plural(right[4]) != is_plural(right[1]), "the noun in between has the other number"
    assert numbers == {False, True}


def test_a_demonstrative_agrees_with_its_noun_or_not() -> None:
    seen = set()
    for good, bad in (pairs["determiner"] for pairs in PAIRS):
        right, wrong = words_of(good), words_of(bad)
        assert right[1:] == wrong[1:] and agrees(right)
        pair = next(forms for forms in DETERMINERS if right[0] in forms)
        assert right[0] == pair[is_plural(right[1])] and wrong[0] == pair[not is_plural(right[1])]
        seen.add(right[0])
    assert len(seen) == 4


def test_two_neighbours_change_places_or_not() -> None:
    places = set()
    for good, bad in (pairs["order"] for pairs in PAIRS):
        right, wrong = words_of(good), words_of(bad)
        differing = [place for place in range(6) if right[place] != wrong[place]]
        assert agrees(right) and len(differing) == 2 and differing[1] == differing[0] + 1
        assert wrong[differing[0]] == right[differing[1]] and wrong[differing[1]] == right[differing[0]]
        places.add(differing[0])
    assert places == {*range(5)}


def test_every_number_has_pairs_of_its_own_the_same_for_all_english_sources() -> None:
    assert len({pairs["distant_agreement"] for pairs in PAIRS}) > 190
    assert WikitextConfig().minimal_pairs(3) == PAIRS[3]
