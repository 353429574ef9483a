"""Notices that documents are sorted by length or by language, from a sample of them in their order.

Eight consecutive parts of the sample are compared. Their difference must exceed that in random orders of the same
documents (a permutation test with a fixed seed), and it must be large: documents next to each other are often alike,
and a significant but small difference harms nothing. Documents that are sorted by topic or by label are not noticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import cache_folder, keep
from lit_transformers.config import Plain, canonical_hash

__all__ = ["EvenlySpaced", "kept", "sorted_by"]

VERSION = 1
"""Part of every cache key: changes when the same documents give another answer."""
PARTS = 8
LEAST = 64
"""Fewer documents show nothing."""
CLIP = 2048
"""The bytes of a document that are examined."""
BUCKETS = 4096
"""The buckets of byte pairs."""
ORDERS = 99
"""Random orders of the permutation test: a probability of at most 1 in 100."""
SORTED_LENGTHS = 0.5
"""The least share of the variance of the ranks of lengths that lies between the parts."""
SORTED_TEXTS = 0.2
"""The least divergence of the byte pairs of the parts, in bits, beyond that of random orders."""


class Sampled(NamedTuple):
    """The beginning of a document, and its length in bytes."""

    beginning: bytes
    length: int


class EvenlySpaced:
    """At most ``most`` documents of a stream of any length, at equal distances."""

    def __init__(self, most: int = 1024) -> None:
        self.most, self.distance, self.seen = most, 1, 0
        self.texts: list[Sampled] = []

    def add(self, text: bytes) -> None:
        if self.seen % self.distance == 0:
            if len(self.texts) == self.most:
                del self.texts[1::2]
                self.distance *= 2
            if self.seen % self.distance == 0:
                self.texts.append(Sampled(text[:CLIP], len(text)))
        self.seen += 1


def sorted_by(texts: Iterable[Sampled]) -> str | None:
    """Returns how documents are sorted, as the end of a sentence; None where they are not, or too few to tell."""
    sample = [text for text in texts if text.length]
    return None if len(sample) < LEAST else " and ".join(_orders_in(sample)) or None


def kept(key: Plain, examine: Callable[[], str | None]) -> str | None:
    """Returns the result of ``examine``, from the cache after the first time. key: plain data that decides it."""
    path = cache_folder() / "order" / f"{canonical_hash([VERSION, key], 32)}.json"
    try:
        message: str | None = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        message = examine()
        keep(path, message)
    return message


def _orders_in(sample: list[Sampled]) -> Iterator[str]:
    part = np.arange(len(sample)) * PARTS // len(sample)
    orders = [part, *(np.random.default_rng([0, number]).permutation(part) for number in range(ORDERS))]
    lengths = np.array([text.length for text in sample])
    shares = [_share_between(_ranks(lengths), order) for order in orders]
    if shares[0] > max(shares[1:]) and shares[0] >= SORTED_LENGTHS:
        medians = [int(np.median(lengths[part == number])) for number in range(PARTS)]
        yield f"by length, from about {medians[0]:,} to about {medians[-1]:,} bytes"
    pairs = np.stack([_byte_pairs(text.beginning) for text in sample])
    bits = [_divergence(pairs, order) for order in orders]
    if bits[0] > max(bits[1:]) and bits[0] - float(np.mean(bits[1:])) >= SORTED_TEXTS:
        yield (
            f"by language or another kind of text (the pairs of bytes of parts differ by {bits[0]:.2f} bits, and by "
            f"{np.mean(bits[1:]):.2f} bits in random orders)"
        )


def _ranks(values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Returns ranks (n,), the mean of their places for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _share_between(ranks: npt.NDArray[np.float64], part: npt.NDArray[np.int64]) -> float:
    """Returns the share of the variance of ranks that lies between parts; 0 where all are equal."""
    centred = ranks - ranks.mean()
    total = float((centred**2).sum())
    counts = np.bincount(part, minlength=PARTS)
    return float((np.bincount(part, centred, PARTS) ** 2 / counts).sum()) / total if total else 0.0


def _byte_pairs(text: bytes) -> npt.NDArray[np.float32]:
    """Returns the shares of the pairs of bytes of a text, in buckets (b,)."""
    values = np.frombuffer(text, np.uint8).astype(np.uint32)
    hashed = (values[:-1] * 257 + values[1:]) * np.uint32(2654435761) >> np.uint32(20)
    return (np.bincount(hashed, minlength=BUCKETS) / max(len(hashed), 1)).astype(np.float32)


def _divergence(pairs: npt.NDArray[np.float32], part: npt.NDArray[np.int64]) -> float:
    """Returns the Jensen-Shannon divergence of the distributions of the parts, in bits. pairs: (n, b)."""
    weights = np.zeros((PARTS, len(part)), np.float32)
    weights[part, np.arange(len(part))] = 1
    shares = (weights / weights.sum(1, keepdims=True)) @ pairs
    return _entropy(shares.mean(0)) - float(np.mean([_entropy(share) for share in shares]))


def _entropy(shares: npt.NDArray[np.float32]) -> float:
    positive = shares[shares > 0].astype(np.float64)
    return float(-(positive * np.log2(positive)).sum())
