"""Data of every kind: the shares of all ranks are the batches of one process, whoever makes them, and a position is
that of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from datamodules import Data, DataConfig, Split
from datamodules.core.documents import SPLITS
from lit_transformers.checks.data_parts import batches_of_ranks

TOPICS = {"kind": "topics", "documents": 41, "sentences": 6, "validation": 0.3, "test": 0.1}
LANES = {"kind": "language", "source": TOPICS, "segment_length": 64, "batch_size": 8}
TEXT = {"source": TOPICS, "tokenizer": "words", "length": 24, "batch_size": 8, "window": 2}
COPY = {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 6, "train": 50}
LISTOPS = {"kind": "listops", "train": 45, "validation": 19}
SHORT = LISTOPS | {"depth": 2, "arguments": 3, "shortest": 4, "longest": 24}
KINDS: dict[str, dict[str, Any]] = {
    "reset": LANES,
    "stream": LANES | {"documents": "stream", "tokenizer": "words", "segment_length": 16},
    "rows": {"kind": "rows", "packing": "segment_pair", **TEXT},
    "rows of one batch": {"kind": "rows", **TEXT, "window": 1},
    "denoising": {"kind": "denoising", **TEXT},
    "pairs": {"kind": "pairs", "source": COPY, "tokens_per_batch": 64, "window": 16},
    "labelled": {"kind": "labelled", "source": LISTOPS, "batch_size": 8, "window": 2},
    "mixed": {"kind": "mixed", "sources": {"a": SHORT, "b": SHORT | {"train": 90}}, "batch_size": 8, "window": 4},
    "strings": {"kind": "generated", "max_length": 6, "lengths": "uniform", "batch_size": 8},
}
COUNT = 11
"""Batches of training that are read: more than a pass of most."""


def data_of(kind: str, workers: int = 0) -> Data:
    return DataConfig.from_dict(KINDS[kind]).override({"workers": workers}).build()


def read(data: Data, ranks: int, split: Split, cursor: str = "", count: int = COUNT) -> list[tuple[str, list[Any]]]:
    """The batches of all ranks, each as its cursor and its rows in the order of one process."""
    return batches_of_ranks(data, ranks, split, cursor, count)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_of_ranks_are_the_batches_of_one_process(kind: str) -> None:
    for split in SPLITS[:2]:
        alone = read(data_of(kind), 1, split)
        assert len({str(rows) for _, rows in alone}) == len(alone) > 1
        for ranks in (2, 4):
            assert read(data_of(kind), ranks, split) == alone


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_workers_make_the_batches_of_one_process(kind: str) -> None:
    for split in SPLITS[:2]:
        alone = read(data_of(kind), 1, split)
        assert read(data_of(kind, workers=2), 1, split) == alone
        assert read(data_of(kind, workers=3), 2, split) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_readers_goes_on_from_a_position(kind: str) -> None:
    alone = read(data_of(kind), 1, "train")
    for place in range(COUNT - 1):
        following = alone[place + 1 : place + 4]
        ranks = (1, 2, 4)[place % 3]
        assert read(data_of(kind), ranks, "train", alone[place][0], len(following)) == following


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reset", "pairs", "strings"])
def test_workers_go_on_from_a_position_within_a_chunk(kind: str) -> None:
    alone = read(data_of(kind), 1, "train")
    assert read(data_of(kind, workers=2), 2, "train", alone[2][0], 5) == alone[3:8]


def test_a_worker_leaves_the_random_numbers_of_training_alone() -> None:
    before = torch.get_rng_state()
    next(iter(data_of("strings", workers=1).train_dataloader()))
    assert torch.equal(torch.get_rng_state(), before)
