"""Who sees whom in rows: how often each mask is drawn, and the orders that stand for it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import AttentionMasksConfig, RowDataConfig, TopicsConfig, WordsConfig
from datamodules.core.windows import Visit
from datamodules.rows.attention_masks import AttentionMask, order_of
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError

TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)
SEGMENTS = np.array([0, 0, 0, 1, 1, 1])


def sees(mask: AttentionMask, i: int, j: int) -> bool:
    """Whether symbol i sees symbol j, as figure 1 of the paper says."""
    match mask:
        case "bidirectional":
            return True
        case "left_to_right":
            return j <= i
        case "right_to_left":
            return j >= i
    return SEGMENTS[j] == 0 or (SEGMENTS[i] == 1 and j <= i)


@pytest.mark.parametrize("mask", ["bidirectional", "left_to_right", "right_to_left", "seq2seq"])
def test_an_order_shows_each_symbol_what_its_mask_does(mask: AttentionMask) -> None:
    order = order_of(mask, SEGMENTS)
    assert [[bool(order[j] <= order[i]) for j in range(6)] for i in range(6)] == [
        [sees(mask, i, j) for j in range(6)] for i in range(6)
    ]


def config(**changes: Any) -> RowDataConfig:
    return RowDataConfig(
        source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=2, window=2, packing="sentence_pair"
    ).override(changes)


MASKED = {"attention_masks": {}, "relation": "sentence_order"}


def test_masks_are_drawn_by_their_shares_and_hide_nothing_else() -> None:
    plain = config(relation="sentence_order").build().reader("train", (0,))
    reader, counts = config(**MASKED).build().reader("train", (0,)), Counter[str]()
    for visit in (Visit(ordinal, epoch) for ordinal in range(reader.total) for epoch in range(40)):
        row, same = reader.row(visit), plain.row(visit)
        assert (row.inputs == same.inputs).all() and (row.targets == same.targets).all() and same.order is None
        [mask] = [
            mask
            for mask in ("bidirectional", "left_to_right", "right_to_left", "seq2seq")
            if np.array_equal(order_of(mask, row.segments), row.order)
        ]
        counts[mask] += 1
        assert row.relation == (same.relation if mask == "bidirectional" else IGNORED), "the paper's cloze tasks"
    for mask, share in (
        ("bidirectional", 1 / 3),
        ("left_to_right", 1 / 6),
        ("right_to_left", 1 / 6),
        ("seq2seq", 1 / 3),
    ):
        assert abs(counts[mask] / counts.total() - share) < 4 * (share * (1 - share) / counts.total()) ** 0.5


def test_a_mask_without_a_share_is_never_drawn() -> None:
    for mask in ("bidirectional", "left_to_right", "right_to_left", "seq2seq"):
        shares = dict.fromkeys(("bidirectional", "left_to_right", "right_to_left", "seq2seq"), 0.0) | {mask: 0.3}
        masks = AttentionMasksConfig(**shares)
        assert {masks.draw(np.random.default_rng(seed)) for seed in range(50)} == {mask}


def test_a_batch_holds_the_orders_of_its_rows_and_an_evaluation_may_have_masks_of_its_own() -> None:
    forward_alone = {"left_to_right": 1.0, "bidirectional": 0.0, "right_to_left": 0.0, "seq2seq": 0.0}
    data = config(**MASKED, **{"evaluation.attention_masks": forward_alone}).build()
    assert data.description.ordered and not config().build().description.ordered
    for batch in islice(data.train_dataloader(), 20):
        assert batch.order is not None and batch.order.shape == batch.inputs.shape
        assert not batch.order[~batch.padding_mask].any()
    for batch in data.val_dataloader():
        forward = torch.arange(batch.inputs.size(1)).expand_as(batch.inputs) * batch.padding_mask
        assert torch.equal(batch.order, forward)
    assert next(iter(config().build().train_dataloader())).order is None


def test_masks_are_part_of_what_decides_a_batch_and_of_the_protocol() -> None:
    contents = {
        config(**changes).build().fingerprint for changes in ({}, MASKED, MASKED | {"attention_masks.seq2seq": 0.0})
    }
    assert len(contents) == 3
    assert config(**MASKED).protocol()["attention_masks"]["seq2seq"] == 2.0
    assert "attention_masks" not in config().protocol()


def test_masks_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"attention_masks.seq2seq reads two segments, and packing full_sentences has"
    ):
        config(packing="full_sentences", attention_masks={})
    with pytest.raises(ConfigError, match="no row is read under any mask"):
        AttentionMasksConfig(bidirectional=0, left_to_right=0, right_to_left=0, seq2seq=0)
    with pytest.raises(ConfigError, match="set attention_masks"):
        config(**{"evaluation.attention_masks": {}})
