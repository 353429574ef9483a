"""Floors of generated texts: copies of the sources, words from a table, and first sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, cast

import numpy as np

from datamodules.core.errors import DataError
from datamodules.core.windows import Endless, Once
from datamodules.floors.strings import answer_floors
from datamodules.pairs.pairs import PairData
from datamodules.pairs.stored_pairs import StoredPairs
from lit_transformers.scores import ROUGES, WordTokenizer, metric_of, rouge_of_each, streams

__all__ = ["first_sentences", "pair_floors", "replaced_words", "word_table"]

SENTENCES = (1, 2, 3)
MOST_LINKS = 1 << 24
"""The most links of a source word and a target word that a table is made from; of more, the first ones."""


def pair_floors(data: PairData, metric: str, batches: int) -> dict[str, float]:
    """Returns BLEU or chrF of copies of the sources and of their words replaced by a table, or ROUGE of their first
    sentences; for other metrics, the values of chance (``answer_floors``). Raises DataError where there is none.

    metric: its name, and after " tok:" the tokenizer of BLEU or ROUGE, where that is not the usual one.
    """
    metric, _, named = metric.partition(" tok:")
    tokenizer = cast("WordTokenizer | None", named or None)
    if metric not in ("bleu", "chrf", *ROUGES):
        return answer_floors(data, metric, batches)
    pairs, split = data.pairs, data.measured_split
    if not isinstance(pairs, StoredPairs):
        raise DataError(f"{data.config.name} are no texts, so no simple predictor has a value of {metric}")
    predictors: dict[str, Callable[[str], str]] = {
        f"first {count} sentences" if count > 1 else "first sentence": partial(first_sentences, count=count)
        for count in SENTENCES
    }
    if metric not in ROUGES:
        words = tokenizer or "13a"
        table = word_table(_training_texts(data, pairs, batches), words)
        predictors = {"copy of the source": str, "table of words": partial(replaced_words, table=table, words=words)}
    ordinals = Once(pairs.count(split), data.config.evaluation.examples).ordinals
    sources = [pairs.source.decode(pairs.pair(split, ordinal).source) for ordinal in ordinals]
    references = [pairs.references(split, ordinal) for ordinal in ordinals]
    return {
        name: _score(metric, tokenizer, [predict(source) for source in sources], references)
        for name, predict in predictors.items()
    }


def _training_texts(data: PairData, pairs: StoredPairs, batches: int) -> Iterator[tuple[str, str]]:
    """Yields the sources and targets that ``batches`` batches of training read, each pair once."""
    readable = data.cleaned("train", True).ordinals
    count = pairs.count("train") if readable is None else len(readable)
    tokens = batches * data.config.tokens_per_batch
    for place in Endless(count, data.config.seed).slice(0, count):
        pair = pairs.pair("train", place if readable is None else int(readable[place]))
        tokens -= max(len(pair.source), len(pair.target)) + 1
        if tokens < 0:
            return
        yield pairs.source.decode(pair.source), pairs.target.decode(pair.target)


def _score(
    metric: str, tokenizer: WordTokenizer | None, hypotheses: Sequence[str], references: Sequence[tuple[str, ...]]
) -> float:
    """Returns the score of a corpus from 0 to 100, by a tokenizer or the usual one; ROUGE is the mean over examples."""
    if metric in ROUGES:
        return float(np.mean([scores[metric] for scores in rouge_of_each(hypotheses, references, tokenizer)]))
    return float(metric_of(metric, tokenizer or "13a").corpus_score(hypotheses, streams(references)).score)


def first_sentences(text: str, count: int) -> str:
    """Returns the first sentences of a text; each ends with its line, or at . ! or ? before white space."""
    sentences = filter(None, re.split(r"(?<=[.!?])\s+|\s*\n\s*", text.strip()))
    return " ".join(list(sentences)[:count])


def replaced_words(text: str, table: Mapping[str, str], words: WordTokenizer = "13a") -> str:
    """Returns a text whose words are replaced by a table; a word that it lacks stays."""
    return " ".join(table.get(word, word) for word in _words(text, words))


def word_table(texts: Iterable[tuple[str, str]], words: WordTokenizer = "13a") -> dict[str, str]:
    """Returns for each word of the sources the word of the targets with the largest Dice coefficient.

    That is 2 n(s, t) / (n(s) + n(t)), where n(s, t) counts the texts that hold both words, and n(s) and n(t) those
    that hold either. Of equal coefficients, the word that occurred first wins.
    """
    source_numbers: dict[str, int] = {}
    target_numbers: dict[str, int] = {}
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    links = 0
    for source, target in texts:
        sources.append(
            [source_numbers.setdefault(word, len(source_numbers)) for word in dict.fromkeys(_words(source, words))]
        )
        targets.append(
            [target_numbers.setdefault(word, len(target_numbers)) for word in dict.fromkeys(_words(target, words))]
        )
        links += len(sources[-1]) * len(targets[-1])
        if links >= MOST_LINKS:
            break
    if not links:
        return {}
    linked_sources = np.repeat(_flat(sources), np.repeat([len(row) for row in targets], [len(row) for row in sources]))
    linked_targets = np.concatenate(
        [np.tile(target, len(source)) for source, target in zip(sources, targets, strict=True)]
    ).astype(np.int64)
    pairs, both = np.unique(linked_sources * len(target_numbers) + linked_targets, return_counts=True)
    source, target = pairs // len(target_numbers), pairs % len(target_numbers)
    dice = 2 * both / (np.bincount(_flat(sources))[source] + np.bincount(_flat(targets))[target])
    order = np.lexsort((target, -dice, source))
    firsts = order[np.unique(source[order], return_index=True)[1]]
    source_words, target_words = list(source_numbers), list(target_numbers)
    return {source_words[source[place]]: target_words[target[place]] for place in firsts.tolist()}


def _words(text: str, tokenizer: WordTokenizer) -> list[str]:
    """Returns the words of a text that BLEU counts by a tokenizer."""
    return str(_tokenizer(tokenizer)(text)).split()


@cache
def _tokenizer(name: WordTokenizer) -> Any:
    return metric_of("bleu", name).tokenizer


def _flat(rows: Iterable[Iterable[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(chain.from_iterable(rows), np.int64)
