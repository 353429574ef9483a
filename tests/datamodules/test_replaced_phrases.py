"""Phrases are replaced by others of their type and length, no two that follow each other, and nothing else of them."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from datamodules import DataError, ReplacePhrasesConfig, RowDataConfig, TopicsConfig, WordsConfig
from datamodules.floors.measure import floors
from datamodules.rows.noises import PlainRow
from datamodules.rows.phrases import Phrases
from lit_transformers.batch import IGNORED

MASK, SPECIAL = 1000, 1001
TYPES = {(1,): 0, (2,): 0, (3,): 0, (4, 5): 0, (6, 7): 0, (8,): 1, (9, 9, 9): 1}
"""Phrases of a type, some with others of their length, and two of another, which have none."""
TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)


def plain(seed: int) -> PlainRow:
    chance = np.random.default_rng(seed)
    drawn = [[*TYPES][number] if number < 7 else (int(20 + number),) for number in chance.integers(14, size=30)]
    symbols = np.array([SPECIAL, *(symbol for phrase in drawn for symbol in phrase), SPECIAL])
    return PlainRow(symbols, symbols != SPECIAL, None, MASK, np.arange(20, 40), Phrases(TYPES))


def test_phrases_are_replaced_by_others_of_their_type_and_as_many_symbols() -> None:
    noise, others, counts = ReplacePhrasesConfig(swapped=0.5), Counter[Any](), Counter[int]()
    for seed in range(400):
        row = plain(seed)
        replaced_row, phrases = noise.replace(row, np.random.default_rng(seed))
        assert phrases is not None
        within = np.zeros(len(row.symbols), np.bool_)
        for start, stop, label in phrases.tolist():
            own, other = tuple(row.symbols[start:stop].tolist()), tuple(replaced_row.symbols[start:stop].tolist())
            assert TYPES[own] == TYPES[other] == 0 and len(own) == len(other) and (own != other) == bool(label)
            others[own, other] += label
            counts[label] += 1
            within[start:stop] = True
        assert (row.symbols == replaced_row.symbols)[~within].all()
        assert not any(before[2] and after[2] for before, after in pairwise(phrases.tolist())), "two that follow"
        inputs, targets = noise.hide(replaced_row, np.random.default_rng(seed))
        of_phrases = np.isin(row.symbols, [*range(1, 10)])
        assert (targets != IGNORED).any() and not (targets != IGNORED)[of_phrases].any(), "a phrase is hidden"
        assert (inputs == replaced_row.symbols)[of_phrases].all()
    # Of two that follow each other one is replaced with a half, so that of all it is a third.
    assert abs(counts[1] / counts.total() - 1 / 3) < 0.03
    for own in ((1,), (2,), (3,)):
        first, second = (others[own, other] for other in ((1,), (2,), (3,)) if other != own)
        assert abs(first - second) < 4 * (first + second) ** 0.5, "any other one, with the same probability"


def config(**changes: Any) -> RowDataConfig:
    noise = {"kind": "replace_phrases", "phrases": {"types": ["ending", "opener"]}}
    return RowDataConfig(source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=2, window=2).override(
        {"noise": noise} | changes
    )


def test_a_batch_says_where_phrases_are_and_which_were_replaced() -> None:
    data = config().build()
    names, known = data.tokenizer.to_dict()["words"], TOPICS.phrases()
    assert data.description.phrases and not config(noise="mask_tokens").build().description.phrases
    count = 0
    for batch in islice(data.train_dataloader(), 30):
        assert batch.phrases is not None and batch.phrases.shape[0] == len(batch.inputs)
        for row, phrases in enumerate(batch.phrases.tolist()):
            real = [phrase for phrase in phrases if phrase[0] != IGNORED]
            assert phrases == real + [[IGNORED] * 3] * (len(phrases) - len(real))
            for start, stop, label in real:
                assert stop == start + 1 and label in (0, 1)
                assert names[int(batch.inputs[row, start])] in {*known["ending"], *known["opener"]}
                count += 1
    assert count > 100
    assert config(noise="mask_tokens").build().train_dataloader().__iter__().__next__().phrases is None


def test_types_that_a_source_does_not_know_are_refused() -> None:
    wrong = {"kind": "replace_phrases", "phrases": {"types": ["openers"]}}
    with pytest.raises(
        DataError, match=r"^data.noise.phrases.types: there are no phrases of openers; did you mean opener"
    ):
        config(noise=wrong).build().prepare_data()


def test_the_floor_of_replaced_phrases_is_how_often_they_are() -> None:
    data = config().build()
    labels = [int(p[2]) for b in data.val_dataloader() for row in b.phrases for p in row if p[0] != IGNORED]
    expected = pytest.approx(1 - fmean(labels))
    assert floors(data, "phrase_accuracy", 30) == {"frequencies of replaced phrases": expected}
    with pytest.raises(DataError, match=r"have no phrase_nats; set data\.noise\.kind"):
        floors(config(noise="mask_tokens").build(), "phrase_nats", 30)
