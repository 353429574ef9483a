"""Generated strings: right answers, each a function of seed, split and ordinal; batches that are resumed and shared."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import (
    GENERATORS,
    AdditionConfig,
    CopyConfig,
    DuplicationConfig,
    GeneratedData,
    GeneratedDataConfig,
    GeneratorConfig,
    RecallConfig,
    ReverseConfig,
    Shard,
)
from datamodules.generated import StringEvaluationConfig
from lit_transformers.batch import IGNORED, StringBatch
from lit_transformers.config import ConfigError, field_types

GENERATORS_TRIED: tuple[GeneratorConfig, ...] = (
    DuplicationConfig(alphabet=5),
    CopyConfig(alphabet=3),
    ReverseConfig(),
    AdditionConfig(),
    AdditionConfig(base=2, order="first_first"),
    RecallConfig(),
    RecallConfig(alphabet=10, pairs=5, filled=False, power=1.0),
)


def make(generator: GeneratorConfig, length: int, seed: int = 0) -> tuple[list[int], list[int]]:
    string = generator.make(length, np.random.default_rng(seed))
    return string.inputs.tolist(), string.targets.tolist()


def read(inputs: list[int], targets: list[int]) -> tuple[list[int], list[int]]:
    """The question without the zeros around it, and the answer; inputs and targets must be one text, shifted."""
    said = [target != IGNORED for target in targets]
    start = said.index(True)
    assert all(said[start:]) and inputs[start + 1 :] == targets[start:-1], "an answer is read on as it should be"
    assert inputs[0] == inputs[start] == 0
    return inputs[1:start], targets[start:]


@given(length=st.integers(1, 30), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_duplication_copy_and_reverse_say_what_they_are_called(length: int, seed: int) -> None:
    question, answer = read(*make(DuplicationConfig(alphabet=4), length, seed))
    assert answer == question and len(question) == length and set(question) <= {1, 2, 3, 4}
    question, answer = read(*make(CopyConfig(alphabet=4), length, seed))
    assert answer == [*question, 0]
    question, answer = read(*make(ReverseConfig(alphabet=4), length, seed))
    assert answer == [*reversed(question), 0]


@given(length=st.integers(3, 60), seed=st.integers(0, 9), base=st.integers(2, 12), first=st.booleans())
@settings(max_examples=50)
def test_the_answer_of_an_addition_is_the_sum(length: int, seed: int, base: int, first: bool) -> None:
    generator = AdditionConfig(base=base, order="first_first" if first else "last_first")
    question, answer = read(*make(generator, length, seed))
    assert len(question) == length and answer[-1] == 0
    plus = question.index(base + 1)
    numbers = [question[:plus], question[plus + 1 :], answer[:-1]]
    a, b, total = (
        sum((symbol - 1) * base**place for place, symbol in enumerate(reversed(n) if first else n)) for n in numbers
    )
    assert a + b == total
    for number in numbers:
        assert len(number) == 1 or number[0 if first else -1] != 1, "a number begins with a zero"


@given(pairs=st.integers(1, 6), spare=st.integers(0, 20), seed=st.integers(0, 9), filled=st.booleans())
@settings(max_examples=50)
def test_recall_asks_every_key_once_for_its_value(pairs: int, spare: int, seed: int, filled: bool) -> None:
    length = 4 * pairs + spare
    inputs, targets = make(RecallConfig(alphabet=12, pairs=pairs, filled=filled), length, seed)
    values = dict(zip(inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2], strict=True))
    assert len(values) == pairs and max(values) <= 6 < min(values.values())
    asked = [(inputs[place], target) for place, target in enumerate(targets) if target != IGNORED]
    assert sorted(asked) == sorted(values.items())
    assert all(target == IGNORED for target in targets[: 2 * pairs])
    assert len(inputs) == length


def test_a_low_power_puts_queries_near() -> None:
    def mean_place(power: float) -> float:
        generator = RecallConfig(alphabet=8, pairs=1, power=power)
        places = [make(generator, 400, seed)[1] for seed in range(200)]
        return float(np.mean([next(i for i, target in enumerate(row) if target != IGNORED) for row in places]))

    assert mean_place(0.01) < 100 < 180 < mean_place(1.0) < 220


@pytest.mark.parametrize("generator", GENERATORS_TRIED, ids=lambda g: g.kind)
@pytest.mark.parametrize("length", [20, 21, 40])
def test_a_string_is_no_longer_and_has_no_other_symbols_than_its_generator_says(
    generator: GeneratorConfig, length: int
) -> None:
    rows = [make(generator, length, seed) for seed in range(60)]
    assert max(len(inputs) for inputs, _ in rows) == generator.row(length)
    used = {symbol for inputs, targets in rows for symbol in (*inputs, *targets)} - {IGNORED}
    assert min(used) >= 0 and max(used) == generator.symbols - 1


def test_every_generator_is_tried() -> None:
    assert {type(generator) for generator in GENERATORS_TRIED} == set(GENERATORS.values())


COPIED, ADDED = [0, 6, 2, 8, 6, 6, 1, 2, 7, 2], [0, 7, 2, 1, 6, 6, 8, 2, 6, 11]
RECALLED = [5, 52, 19, 37, 15, 57, 25, 52, 15, 24]
SMALL = GeneratedDataConfig(
    generator=CopyConfig(alphabet=3),
    max_length=7,
    batch_size=4,
    evaluation=StringEvaluationConfig(lengths=(5, 9), examples=10),
)


def changed(**changes: Any) -> GeneratedDataConfig:
    return SMALL.override({path.replace("__", "."): value for path, value in changes.items()})


def batches(config: GeneratedDataConfig, count: int) -> list[StringBatch]:
    return list(islice(iter(GeneratedData(config).train_dataloader()), count))


def same(one: StringBatch, other: StringBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one[:5], other[:5], strict=True))


def strings(batch: StringBatch) -> Iterator[tuple[int, ...]]:
    for row, keep in zip(batch.inputs, batch.keep, strict=True):
        yield tuple(row[keep].tolist())


def test_a_row_holds_a_string_and_padding_that_is_neither_read_nor_scored() -> None:
    batch = batches(changed(lengths="uniform", batch_size=32), 1)[0]
    sizes = batch.keep.sum(1)
    assert torch.equal(sizes, 2 * batch.asked + 2), "0 w 0 w, of which the last zero is only said"
    assert len(set(batch.asked.tolist())) > 3 and batch.asked.max() == 7
    assert (batch.targets[~batch.keep] == IGNORED).all() and (batch.inputs[~batch.keep] == 0).all()
    assert torch.equal((batch.targets != IGNORED).sum(1), batch.asked + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on_with_exactly_the_next_batch(workers: int) -> None:
    data = GeneratedData(changed(workers=workers))
    whole = list(islice(iter(data.train_dataloader()), 9))
    position = data.training().start()
    for batch in whole[:5]:
        position = position.after(batch)
    resumed = GeneratedData(changed(workers=workers))
    resumed.load_state_dict({"of": data.identity(), "ranks": [[list(position.cursors), position.turn]]})
    rest = list(islice(iter(resumed.train_dataloader()), 4))
    assert all(same(one, other) for one, other in zip(whole[5:], rest, strict=True))


def test_no_string_of_training_comes_twice_and_ranks_share_them() -> None:
    whole = batches(SMALL, 6)
    reading = GeneratedData(SMALL).training()
    shared: list[StringBatch] = []
    for number in range(2):
        rank = reading._replace(rank=Shard(number, 2))
        shared += islice(rank.batches(rank.start()), 3)
    alone, apart = ([o for batch in found for o in batch.example.tolist()] for found in (whole, shared))
    assert sorted(alone) == sorted(apart) == list(range(24))
    by_ordinal = {o: s for batch in whole for o, s in zip(batch.example.tolist(), strings(batch), strict=True)}
    for batch in shared:
        assert all(by_ordinal[o] == s for o, s in zip(batch.example.tolist(), strings(batch), strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_shows_every_string_of_every_length_once(ranks: int, workers: int) -> None:
    seen: dict[int, tuple[int, ...]] = {}
    for number in range(ranks):
        reading = GeneratedData(changed(workers=workers, batch_size=6)).evaluation("validation")
        for batch in (rank := reading._replace(rank=Shard(number, ranks))).batches(rank.start()):
            assert len(set(batch.asked.tolist())) == 1
            found = dict(zip(batch.example.tolist(), strings(batch), strict=True))
            assert not found.keys() & seen.keys()
            seen |= found
    assert sorted(seen) == list(range(20))
    assert {len(string) for ordinal, string in seen.items() if ordinal < 10} == {12}
    assert {len(string) for ordinal, string in seen.items() if ordinal >= 10} == {20}


def test_splits_and_lengths_share_no_random_numbers() -> None:
    config = changed(generator__alphabet=100, max_length=30, evaluation__lengths=[30], evaluation__examples=50)
    trained = {string for batch in batches(config, 20) for string in strings(batch)}
    measured = {
        split: {string for batch in GeneratedData(config).evaluation_dataloader(split) for string in strings(batch)}
        for split in ("validation", "test")
    }
    assert len(trained) == 80 and all(len(found) == 50 for found in measured.values())
    assert not trained & measured["validation"] and not measured["test"] & measured["validation"]


def test_the_seed_of_training_changes_what_is_trained_and_not_what_is_measured() -> None:
    other = changed(seed=1)
    assert not same(batches(SMALL, 1)[0], batches(other, 1)[0])
    one, two = (list(GeneratedData(config).val_dataloader()) for config in (SMALL, other))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))
    three = list(GeneratedData(changed(evaluation__seed=1)).val_dataloader())
    assert not any(same(a, b) for a, b in zip(one, three, strict=True))


OTHERWISE = {
    "generator": "reverse",
    "max_length": 8,
    "lengths": "uniform",
    "batch_size": 5,
    "seed": 3,
    "evaluation.lengths": [5, 8],
    "evaluation.examples": 11,
    "evaluation.batch_size": 3,
    "evaluation.seed": 1,
    "evaluation.split": "test",
}


def test_every_field_changes_batches_and_the_fingerprint() -> None:
    named = {f"evaluation.{name}" for name in field_types(StringEvaluationConfig)} | set(
        field_types(GeneratedDataConfig)
    )
    assert named - set(OTHERWISE) == {"workers", "evaluation"}, "workers: test_training_goes_on_with_exactly_the_next"

    def observed(config: GeneratedDataConfig) -> list[Any]:
        found = [*batches(config, 3), *GeneratedData(config).val_dataloader()]
        return [tuple(part.tolist() for part in batch[:5]) for batch in found]

    for path, value in OTHERWISE.items():
        other = SMALL.override({path: value})
        assert observed(other) != observed(SMALL), path
        assert GeneratedData(other).fingerprint != GeneratedData(SMALL).fingerprint, path


@pytest.mark.parametrize("generator", GENERATORS_TRIED[:1] + GENERATORS_TRIED[3:6], ids=lambda g: g.kind)
def test_every_field_of_a_generator_changes_strings_and_the_content(generator: GeneratorConfig) -> None:
    otherwise = {"alphabet": 70, "base": 9, "order": "first_first", "pairs": 3, "power": 2.0, "filled": False}
    for name in field_types(type(generator)):
        value = otherwise[name] if otherwise[name] != generator.get(name) else "last_first"
        other = generator.override({name: value})
        assert [make(other, 24, seed) for seed in range(5)] != [make(generator, 24, seed) for seed in range(5)], name
        one, two = (
            GeneratedData(SMALL.override({"generator": g, "max_length": 24, "evaluation.lengths": []}))
            for g in (generator, other)
        )
        assert one.content != two.content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": AdditionConfig(), "max_length": 2}, "max_length 2 is too short: a.b takes 3 symbols"),
        (
            {"generator": RecallConfig(pairs=2)},
            r"max_length 7 is too short: 2 pairs and as many queries take 8 symbols",
        ),
        ({"generator": RecallConfig(pairs=1), "evaluation.lengths": [3]}, r"evaluation\.lengths 3 is too short"),
        ({"evaluation.lengths": [4, 4]}, "lengths names one twice"),
        ({"generator.pairs": 3}, r"generator.pairs: CopyConfig has no field 'pairs'"),
        ({"generator": {"kind": "recall", "alphabet": 4, "pairs": 3}}, "3 pairs need as many keys"),
    ],
)
def test_what_cannot_be_generated_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL.override(changes)


def test_short_lengths_that_a_generator_has_not_are_left_out_of_uniform_ones() -> None:
    config = GeneratedDataConfig(generator=AdditionConfig(), max_length=5, lengths="uniform", batch_size=64)
    assert set(batches(config, 1)[0].asked.tolist()) == {3, 4, 5}


def test_a_checkpoint_describes_the_data_and_a_reading_can_be_sent_to_a_worker() -> None:
    data = GeneratedData(SMALL)
    assert SMALL.describe(data.kept()) == data.description
    assert (data.description.length, data.description.vocabulary.size) == (16, 4)
    pickle.loads(pickle.dumps(data.training()))
    assert [data.example_name(ordinal) for ordinal in (0, 9, 10)] == ["5:0", "5:9", "9:0"]


@pytest.mark.parametrize(("kind", "question"), [("copy", COPIED), ("addition", ADDED), ("recall", RECALLED)])
def test_the_strings_of_a_seed_stay_what_they_are(kind: str, question: list[int]) -> None:
    """Published numbers are of these strings; where they have to change, so has VERSION in generated.py."""
    config = SMALL.override({"generator": kind, "max_length": 16, "evaluation.lengths": []})
    assert batches(config, 1)[0].inputs[0, :10].tolist() == question
