"""N-grams and given phrases are hidden as a whole; given phrases are where they are, and no others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import (
    DataError,
    MaskNgramsConfig,
    MaskPhrasesConfig,
    PhrasesConfig,
    RowData,
    RowDataConfig,
    TopicsConfig,
    WordsConfig,
)
from datamodules.core.windows import Visit
from datamodules.rows.noises import PlainRow, placed_spans, words_of
from datamodules.rows.phrases import Phrases
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError

MASK, SPECIAL = 1000, 1001
TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)


def plain(symbols: np.ndarray[Any, np.dtype[np.int64]], begins: Any = None, phrases: Phrases | None = None) -> PlainRow:
    return PlainRow(symbols, symbols != SPECIAL, begins, MASK, np.arange(1000), phrases)


def test_an_ngram_of_n_words_is_drawn_with_a_probability_that_is_proportional_to_1_over_n() -> None:
    row, lengths = plain(np.arange(4000) % 900), Counter[int]()
    for number in range(40):
        spans = placed_spans(row, 600, np.cumsum(1 / np.arange(1, 4)), np.random.default_rng(number))
        lengths.update(stop - start for start, stop in spans[:-1])  # the last one is cut
        _, targets = MaskNgramsConfig().hide(row, np.random.default_rng(number))
        places = [place for start, stop in spans for place in range(start, stop)]
        assert sorted(places) == np.flatnonzero(targets != IGNORED).tolist() and len(places) == 600
    for length, share in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        error = (share * (1 - share) / lengths.total()) ** 0.5
        assert abs(lengths[length] / lengths.total() - share) < 4 * error
    assert set(lengths) == {1, 2, 3}


def test_what_becomes_of_the_symbols_of_an_ngram_is_drawn_for_each() -> None:
    row = plain(np.arange(900))
    fates = Counter[int]()
    for number in range(30):
        chance = np.random.default_rng(number)
        spans = placed_spans(row, 135, np.cumsum(1 / np.arange(1, 4)), chance)
        inputs, _ = MaskNgramsConfig(unchanged=0.5, replaced=0.0).hide(row, np.random.default_rng(number))
        fates.update(int((inputs[start:stop] == MASK).sum()) for start, stop in spans if stop - start == 3)
    assert set(fates) == {0, 1, 2, 3}


def found_one_by_one(row: PlainRow, types: dict[tuple[int, ...], int]) -> list[tuple[int, int, int]]:
    """The given phrases of a row: from left to right, the longest one that begins at a word and ends with one."""
    words, results, place = words_of(row).tolist(), [], 0
    starts, stops = {start for start, _ in words}, {stop for _, stop in words}
    while place < len(row.symbols):
        for stop in range(len(row.symbols), place, -1):
            phrase = tuple(row.symbols[place:stop].tolist())
            if place in starts and stop in stops and phrase in types and row.allowed[place:stop].all():
                results.append((place, stop, types[phrase]))
                place = stop - 1
                break
        place += 1
    return results


def random_row(seed: int, types: dict[tuple[int, ...], int]) -> PlainRow:
    chance = np.random.default_rng(seed)
    symbols = chance.integers(4, size=40)
    symbols[[0, 17, 39]] = SPECIAL
    return plain(symbols, chance.random(40) < 0.8, Phrases(types))


def test_given_phrases_stand_where_a_search_of_every_place_finds_them() -> None:
    chance = np.random.default_rng(0)
    drawn = [tuple(chance.integers(4, size=int(chance.integers(1, 5))).tolist()) for _ in range(25)]
    types = {phrase: number % 3 for number, phrase in enumerate(drawn)}
    counted = 0
    for seed in range(60):
        row = random_row(seed, types)
        assert row.phrases is not None
        occurrences = row.phrases.occurrences(row.symbols, words_of(row))
        expected = found_one_by_one(row, types)
        assert [*zip(*(part.tolist() for part in occurrences), strict=True)] == expected
        counted += len(expected)
    assert counted > 300


def test_a_phrase_is_hidden_as_a_whole_or_not_at_all() -> None:
    types = {(1, 2): 0, (3, 3, 3): 1, (0, 2, 1): 1}
    hidden = Counter[str]()
    for seed in range(80):
        row = random_row(seed, types)
        row = row._replace(begins=None)
        spans = found_one_by_one(row, types)
        of_phrases = np.zeros(40, np.bool_)
        for noise in (MaskPhrasesConfig(rate=0.3), MaskPhrasesConfig(rate=0.3, others=False)):
            chosen = noise.hide(row, np.random.default_rng(seed)).targets != IGNORED
            for start, stop, _ in spans:
                assert chosen[start:stop].all() or not chosen[start:stop].any(), "a part of a phrase"
                of_phrases[start:stop] = True
                hidden["phrase"] += int(chosen[start])
            assert chosen.sum() <= noise.count(int(row.allowed.sum())) and not chosen[~row.allowed].any()
            hidden["other"] += int(chosen[~of_phrases].sum())
            if not noise.others:
                assert not chosen[~of_phrases].any() and chosen.any() == bool(spans)
    assert min(hidden.values()) > 100


def config(**changes: Any) -> RowDataConfig:
    return RowDataConfig(source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=2, window=2).override(changes)


def hidden_words(data: RowData) -> set[str]:
    """The words that are predicted in the first epoch of training."""
    reader, names = data.reader("train", (0,)), data.tokenizer.to_dict()["words"]
    rows = (reader.row(Visit(ordinal, 0)) for ordinal in range(reader.total))
    return {names[symbol] for row in rows for symbol in row.targets[row.targets != IGNORED].tolist()}


def test_topics_know_their_words_by_kind() -> None:
    known = TOPICS.phrases()
    assert {kind: len(words) for kind, words in known.items()} == {
        "opener": 8, "subject": 8, "ending": 8, "content": 128
    }  # fmt: skip
    for number in range(10):
        for line in TOPICS.document(number).decode().splitlines():
            opener, subject, *content, ending = line.split()
            assert opener in known["opener"] and subject in known["subject"] and ending in known["ending"]
            assert {*content} <= {*known["content"]}


def test_phrases_are_listed_or_in_a_file_or_those_of_the_source(tmp_path: Path) -> None:
    known = TOPICS.phrases()
    alone = {"kind": "mask_phrases", "others": False}
    (tmp_path / "openers.txt").write_text("".join(f"opener\t{word}\n" for word in known["opener"]) + "\nbibi none\n")
    listed = alone | {"phrases": {"listed": {"ending": known["ending"]}}}
    in_file = alone | {"phrases": {"path": str(tmp_path / "openers.txt")}}
    assert hidden_words(config(noise=listed).build()) == {*known["ending"]}
    assert hidden_words(config(noise=in_file).build()) == {*known["opener"]}
    of_source = hidden_words(config(noise=alone).build())
    assert all(of_source & {*words} for words in known.values()), "of every kind"


def test_what_a_file_of_phrases_holds_tells_data_apart_and_where_it_lies_does_not(tmp_path: Path) -> None:
    words, contents = TOPICS.phrases()["opener"], []
    for name, text in (("a", words[:2]), ("b", words[:2]), ("c", words[1:3])):
        (tmp_path / name).write_text("\n".join(text))
        noise = {"kind": "mask_phrases", "phrases": {"path": str(tmp_path / name)}}
        contents.append(config(noise=noise).build().content)
    assert contents[0] == contents[1] != contents[2]
    measured = config(**{"evaluation.noise": {"kind": "mask_phrases", "phrases": {"path": str(tmp_path / "c")}}})
    assert measured.build().content not in (config().build().content, contents[2])


def test_phrases_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="listed or in a file"):
        PhrasesConfig(listed={"": ["a"]}, path="b")
    with pytest.raises(DataError, match=r"^data.noise.phrases: none of 1 phrases can be written by tokenizer words"):
        config(noise={"kind": "mask_phrases", "phrases": {"listed": {"": ["no such words"]}}}).build().prepare_data()
    with pytest.raises(DataError, match=r"no such file or folder .*; correct data.noise.phrases.path"):
        config(noise={"kind": "mask_phrases", "phrases": {"path": str(tmp_path / "none")}}).build().prepare_data()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"bytes:1: byte 0 of the line is not UTF-8"):
        config(noise={"kind": "mask_phrases", "phrases": {"path": str(tmp_path / "bytes")}}).build().prepare_data()
