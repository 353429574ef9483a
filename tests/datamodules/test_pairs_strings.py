"""Strings as pairs: the question is the source, the answer is the target; every length is measured separately."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch

from datamodules import AdditionConfig, DataError, PairDataConfig, StringPairsConfig, tokenizers_of
from lit_transformers.batch import PairBatch
from lit_transformers.config import ConfigError

KINDS = ["copy", "reverse", "addition"]


def config(**changes: Any) -> PairDataConfig:
    return PairDataConfig().override({"source.max_length": 9, "tokens_per_batch": 100, "window": 20} | changes)


def sources_and_targets(batch: PairBatch) -> list[tuple[list[int], list[int]]]:
    """Returns the source and the target of every row, without the boundaries that end them."""
    pairs = []
    for row in range(len(batch.example)):
        source = batch.source[row][batch.source_padding_mask[row]].tolist()
        target = batch.targets[row][batch.padding_mask[row]].tolist()
        assert source[-1] == target[-1] == batch.inputs[row, 0] == 0
        pairs.append((source[:-1], target[:-1]))
    return pairs


def test_the_default_needs_no_file() -> None:
    batch = next(iter(PairDataConfig().build().train_dataloader()))
    assert batch.inputs.numel() <= 4096 and all(source == target for source, target in sources_and_targets(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_is_the_answer_to_its_source(kind: str) -> None:
    for batch in islice(config(**{"source.generator": kind}).build().train_dataloader(), 5):
        for source, target in sources_and_targets(batch):
            if kind == "addition":
                plus = source.index(11)
                numbers = [int("".join(str(symbol - 1) for symbol in part[::-1])) for part in
                           (source[:plus], source[plus + 1 :], target)]  # fmt: skip
                assert numbers[0] + numbers[1] == numbers[2]
            else:
                assert target == (source if kind == "copy" else source[::-1])
            assert 0 not in source + target


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_told_and_reached_but_not_exceeded(kind: str) -> None:
    data_config = config(**{"source.generator": kind, "source.lengths": "fixed"})
    description = data_config.build().description
    batches = list(islice(data_config.build().train_dataloader(), 60))
    assert {batch.source.size(1) for batch in batches} == {10} == {description.source_length}
    assert max(batch.inputs.size(1) for batch in batches) == description.length == data_config.length
    assert description.vocabulary is description.source


def test_training_lengths_are_uniform_unless_they_are_fixed() -> None:
    pairs = config(**{"source.train": 900}).build().pairs
    counts = Counter(len(pairs.pair("train", ordinal).source) for ordinal in range(900))
    assert sorted(counts) == list(range(1, 10)) and 60 < min(counts.values()) <= max(counts.values()) < 140


def test_evaluation_asks_for_as_many_of_every_length_and_tells_them_apart() -> None:
    data_config = config(**{"evaluation.lengths": [4, 9, 30], "evaluation.examples": 12})
    data = data_config.build()
    batches = list(data.val_dataloader())
    requested_lengths = torch.cat([batch.requested_length for batch in batches]).tolist()
    assert Counter(requested_lengths) == {4: 4, 9: 4, 30: 4}
    for batch in batches:
        for (source, target), length, references in zip(
            sources_and_targets(batch), batch.requested_length.tolist(), batch.references, strict=True
        ):
            assert len(source) == len(target) == length
            assert references == (" ".join(map(str, target)),)
            assert data.description.detokenize(target) == references[0]
    assert [data.example_name(ordinal) for ordinal in (0, 5)] == ["validation:4:0", "validation:30:1"]
    assert data_config.protocol()["lengths"] == [4, 9, 30]
    assert data_config.build().description.length == 10, "the network is built for the lengths that it is trained on"


def test_evaluation_is_the_same_whatever_the_seed_of_training_and_its_splits_differ() -> None:
    def evaluation_pairs(split: str, **changes: Any) -> list[Any]:
        loader = (
            config(**changes, **{"evaluation.examples": 6, "evaluation.split": split}).build().measured_dataloader()
        )
        return [sources_and_targets(batch) for batch in loader]

    assert evaluation_pairs("validation") == evaluation_pairs("validation", seed=3) != evaluation_pairs("test")
    assert evaluation_pairs("validation") != evaluation_pairs("validation", **{"source.seed": 1})
    assert sum(map(len, evaluation_pairs("train"))) == 6


def test_what_is_evaluated_changes_neither_content_nor_training() -> None:
    data_config = config(**{"evaluation.lengths": [4, 30]})
    assert data_config.with_default_evaluation() == config() and data_config.build().content == config().build().content
    assert data_config.build().fingerprint != config().build().fingerprint
    for changes in ({"source.seed": 1}, {"source.generator": "reverse"}, {"source.max_length": 8}):
        assert config(**changes).build().content != config().build().content


def test_a_checkpoint_of_strings_describes_them_and_reads_no_text() -> None:
    data = config().build()
    assert config().description_from(data.checkpoint_metadata()) == data.description
    assert data.checkpoint_metadata()["languages"] is None
    with pytest.raises(DataError, match="keeps no tokenizer, for it was not trained on text"):
        tokenizers_of(data.checkpoint_metadata())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "bytes"}, "tokenizer does not apply to strings"),
        ({"longest_source": 5}, "longest_source does not apply to strings"),
        ({"overlong": "drop"}, "overlong does not apply to strings"),
        ({"ratio": 2.0}, "ratio does not apply to strings"),
        ({"source.generator": "recall"}, r"source: generator recall asks no question .*; copy, reverse, addition do"),
        ({"evaluation.lengths": [200]}, "tokens_per_batch 100 does not hold one pair, of up to 201 tokens a side"),
        ({"evaluation.lengths": [5], "evaluation.split": "train"}, "evaluation: lengths are measured in validation"),
    ],
    ids=str,
)
def test_what_says_nothing_of_strings_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_lengths_that_no_sum_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_length 2 is too short: a\+b takes 3 symbols"):
        StringPairsConfig(generator=AdditionConfig(), max_length=2)
    with pytest.raises(ConfigError, match=r"evaluation.lengths 2: a\+b takes 3 symbols"):
        config(**{"source.generator": "addition", "evaluation.lengths": [2]})
