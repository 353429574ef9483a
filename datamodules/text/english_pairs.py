"""Minimal pairs of English sentences by rules, as BLiMP makes them (Warstadt et al. 2020, arXiv:1912.00582, section 3).

Their words are frequent in books of any time, and every noun goes with every verb, so that grammar alone tells the two
sentences of a pair apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["english_pairs"]

NOUNS = (
    "boy", "girl", "king", "friend", "brother", "sister", "father", "mother", "soldier", "teacher", "doctor", "servant",
    "captain", "stranger", "prisoner", "officer", "prince", "queen", "farmer", "sailor", "daughter", "neighbour",
)  # fmt: skip
VERBS = (
    "laughs", "speaks", "walks", "sits", "sleeps", "smiles", "waits", "runs", "sings", "writes", "rises", "listens",
    "stands", "reads", "returns", "remains", "lives", "comes", "knows", "works", "suffers", "trembles",
)  # fmt: skip
PLACES = ("near", "behind", "before", "beside", "with", "by")
DETERMINERS = (("this", "these"), ("that", "those"))


def english_pairs(number: int) -> Mapping[str, tuple[bytes, bytes]]:
    """Returns a good sentence and a bad one for each rule; every ``number`` has others.

    agreement: a verb agrees with its subject in number. distant_agreement: also where a noun of the other number stands
    between them (Marvin and Linzen 2018, arXiv:1808.09031). determiner: a demonstrative agrees with its noun. order:
    words stand in their order, and two neighbours do not change places.
    """
    chance = np.random.default_rng([number, len(NOUNS)])
    (noun, other), verb = chance.choice(NOUNS, 2, replace=False).tolist(), str(chance.choice(VERBS))
    place, plural, demonstrative = str(chance.choice(PLACES)), int(chance.integers(2)), int(chance.integers(2))
    subject, attractor = ((noun, f"{noun}s")[plural], (f"{other}s", other)[plural])
    verbs = (verb, verb[:-1])
    agrees, fails = verbs[plural], verbs[1 - plural]
    right, wrong = DETERMINERS[demonstrative][plural], DETERMINERS[demonstrative][1 - plural]
    words = ["the", subject, place, "the", attractor, agrees]
    first = int(chance.integers(len(words) - 1))
    swapped = [*words]
    swapped[first], swapped[first + 1] = words[first + 1], words[first]
    pairs = {
        "agreement": (["the", subject, agrees], ["the", subject, fails]),
        "distant_agreement": (words, [*words[:-1], fails]),
        "determiner": ([right, subject, agrees], [wrong, subject, agrees]),
        "order": (words, swapped),
    }
    return {rule: (_sentence(good), _sentence(bad)) for rule, (good, bad) in pairs.items()}


def _sentence(words: list[str]) -> bytes:
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]} .".encode()
