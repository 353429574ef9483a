"""Floors of language modelling: n-gram models of the text that a run trains on."""

from __future__ import annotations

import math

import numpy as np

from datamodules.core.documents import DocumentStream
from datamodules.core.errors import DataError
from datamodules.core.tokenizers import Symbols, Tokenizer, encode_document
from datamodules.floors.ngrams import NgramText, ngram_nats
from datamodules.text.language import LanguageData

__all__ = ["language_floors"]

LONGEST = 6
"""Number of symbols of the longest context."""
MOST_SYMBOLS = 1 << 24
"""The most symbols of training that are counted; of more, the first ones of the order of training."""


def language_floors(data: LanguageData, metric: str, batches: int) -> dict[str, float]:
    """Returns nats or perplexity per symbol, or bits per byte, of n-gram models with contexts of 1 to 6 symbols.

    They count what so many batches of training read, each document once, and are measured on the documents of the
    evaluation. Raises DataError for other metrics, and for bytes where symbols have no known ones.
    """
    vocabulary = data.vocabulary
    if metric not in ("nats", "perplexity", "bpb") or (metric == "bpb" and vocabulary.byte_lengths is None):
        raise DataError(f"no n-gram model of {vocabulary.unit}s has a value of {metric}")
    tokens = min(batches * data.config.tokens_per_step, MOST_SYMBOLS)
    training = data.documents("train").training(data.config.seed)
    evaluation = data.documents(data.validation_split).evaluation(data.config.evaluation.limit)
    evaluated = _first(evaluation, data.tokenizer, math.inf)
    # A boundary that comes last is no symbol of a text; a pretrained tokenizer has its own among the others.
    size = vocabulary.size - (vocabulary.boundary == vocabulary.size - 1)
    text = NgramText.of(_first(training, data.tokenizer, tokens), evaluated, size, LONGEST)
    byte_count = 0
    if vocabulary.byte_lengths is not None:
        byte_count = int(np.asarray(vocabulary.byte_lengths)[np.concatenate(evaluated)].sum())
    results = {}
    for order, nats in enumerate(ngram_nats(text)):
        name = f"n-gram model, {order} {vocabulary.unit}{'s' if order > 1 else ''} of context"
        mean = float(nats.mean())
        per_byte = float(nats.sum()) / math.log(2) / max(byte_count, 1)
        results[name] = {"nats": mean, "perplexity": math.exp(mean), "bpb": per_byte}[metric]
    return {name: value for order, (name, value) in enumerate(results.items()) if order > 0}


def _first(stream: DocumentStream, tokenizer: Tokenizer, tokens: float) -> list[Symbols]:
    """Returns the symbols of the first documents of a stream, as many as reach so many symbols, each document once."""
    documents: list[Symbols] = []
    ordinals: set[int] = set()
    while tokens > 0 and (item := stream.take()) is not None and item[0] not in ordinals:
        ordinals.add(item[0])
        documents.append(encode_document(tokenizer, item[1]))
        tokens -= len(documents[-1])
    return documents
