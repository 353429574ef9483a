"""Generators whose truth is known: another reading of each definition answers every question; chance is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from datamodules import (
    AdditionConfig,
    BracketsConfig,
    CopyConfig,
    DuplicationConfig,
    GeneratedData,
    GeneratedDataConfig,
    GeneratorConfig,
    InContextRecallConfig,
    InductionConfig,
    MemorisationConfig,
    RecallConfig,
    SelectiveCopyConfig,
)
from datamodules.strings.generated import StringEvaluationConfig
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError, field_types
from lit_transformers.runs.config import RunConfig, references
from lit_transformers.tasks import StringsConfig

FUZZY = InContextRecallConfig(keys=4, values=5, key_length=3, value_length=2, noise=0.2, noise_symbols=3)
Rows = tuple[list[int], list[int]]


def make_strings(generator: GeneratorConfig, length: int, count: int) -> Iterator[Rows]:
    for seed in range(count):
        string = generator.make(length, np.random.default_rng(seed))
        yield string.inputs.tolist(), string.targets.tolist()


def answers(targets: list[int]) -> list[int]:
    return [target for target in targets if target != IGNORED]


def recall_by_reading(generator: InContextRecallConfig, inputs: list[int], last: int) -> list[int]:
    """Returns the targets of a string, read as runs of symbols of one set; its last value ends in ``last``."""

    def set_of(symbol: int) -> str:
        limits = {"nothing": 0, "key": generator.keys, "value": generator.keys + generator.values}
        return next((name for name, limit in limits.items() if symbol <= limit), "noise")

    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    key: tuple[int, ...] = ()
    expected: list[int] = []
    for name, symbols in groupby([*inputs, last], set_of):
        run = tuple(symbols)
        if name == "value":
            assert known.get(key, run) == run, "a key has one value in a string"
            expected += run if key in known else [IGNORED] * len(run)
            known[key] = run
        else:
            expected += [IGNORED] * len(run)
        if name == "key":
            key = run
            assert len(set(key)) == len(key) <= generator.key_length
    return expected[1:]


@pytest.mark.parametrize("generator", [InContextRecallConfig(), FUZZY], ids=["single", "fuzzy"])
@pytest.mark.parametrize("length", [9, 40, 41])
def test_the_value_of_every_key_that_comes_again_follows_from_the_string(
    generator: InContextRecallConfig, length: int
) -> None:
    for inputs, targets in make_strings(generator, length, 40):
        assert len(inputs) == length and targets[-1] != IGNORED, "the last pair asks for a key that the string has"
        assert recall_by_reading(generator, inputs, targets[-1]) == targets


def test_an_evaluation_of_fuzzy_recall_asks_for_the_longest_keys_and_training_for_all() -> None:
    def key_lengths(generator: InContextRecallConfig) -> set[int]:
        rows = (inputs for inputs, _ in make_strings(generator, 40, 30))
        runs = (groupby(inputs, lambda symbol: 0 < symbol <= FUZZY.keys) for inputs in rows)
        return {len([*run]) for groups in runs for is_key, run in groups if is_key}

    assert (key_lengths(FUZZY), key_lengths(FUZZY.measured)) == ({1, 2, 3}, {3})
    config = GeneratedDataConfig(generator=FUZZY, evaluation=StringEvaluationConfig(examples=2))
    string = FUZZY.measured.make(40, np.random.default_rng([0, 1, 40, 1]))
    assert next(iter(GeneratedData(config).val_dataloader())).inputs[1].tolist() == string.inputs.tolist()


@pytest.mark.parametrize("noise", [0.0, 0.25, 0.75])
def test_noise_takes_the_place_of_its_share_of_pairs(noise: float) -> None:
    generator = InContextRecallConfig(noise=noise, noise_symbols=5 if noise else 0)
    # Of 32 pairs 30 are drawn: one is never noise, and the last one asks.
    noisy = [sum(symbol > 16 for symbol in inputs) / 60 for inputs, _ in make_strings(generator, 64, 60)]
    assert np.mean(noisy) == pytest.approx(noise, abs=0.03)


def test_a_selective_copy_has_all_symbols_in_their_order_wherever_they_stand() -> None:
    generator = SelectiveCopyConfig(alphabet=6, copied=5)
    places: Counter[int] = Counter()
    for inputs, targets in make_strings(generator, 20, 300):
        question = inputs.index(7)
        assert question == 14 and inputs[question + 1 :] == [0] * 5 == [0] * len(answers(targets))
        assert [symbol for symbol in inputs[:question] if symbol] == targets[question + 1 :] == answers(targets)
        places.update(place for place, symbol in enumerate(inputs[:question]) if symbol)
    assert set(places) == set(range(14)) and max(places.values()) < 1.5 * min(places.values())


def test_one_dictionary_answers_the_strings_of_every_seed_and_length() -> None:
    generator = MemorisationConfig(facts=9)

    def facts(generator: MemorisationConfig, length: int) -> set[tuple[int, int]]:
        rows = [*make_strings(generator, length, 60)]
        assert all(set(inputs[1::2]) == {0} and set(targets[::2]) == {IGNORED} for inputs, targets in rows)
        return {fact for inputs, targets in rows for fact in zip(inputs[::2], targets[1::2], strict=False)}

    dictionary = dict(facts(generator, 8))
    assert facts(generator, 8) == facts(generator, 21) == set(dictionary.items())
    assert sorted(dictionary) == [*range(1, 10)] and sorted(dictionary.values()) == [*range(10, 19)]
    assert facts(MemorisationConfig(facts=9, dictionary=1), 8) != facts(generator, 8)


def test_induction_asks_what_followed_the_one_earlier_occurrence() -> None:
    for inputs, targets in make_strings(InductionConfig(alphabet=6), 20, 60):
        for place, (symbol, target) in enumerate(zip(inputs, targets, strict=True)):
            is_second = inputs[: place + 1].count(symbol) == 2
            assert target == (inputs[inputs.index(symbol) + 1] if is_second else IGNORED)
        assert answers(targets)


@pytest.mark.parametrize("length", [30, 31])
def test_brackets_are_balanced_no_deeper_than_allowed_and_each_is_closed_by_its_kind(length: int) -> None:
    deepest = 0
    for inputs, targets in make_strings(BracketsConfig(alphabet=3, depth=4), length, 60):
        assert inputs[: 1 + length % 2] == [0] * (1 + length % 2) and 0 not in inputs[1 + length % 2 :]
        open_kinds: list[int] = []
        for symbol, target in zip([*inputs[1:], targets[-1]], targets, strict=True):
            if symbol == 0:
                assert target == IGNORED
            elif symbol <= 3:
                assert target == IGNORED
                open_kinds.append(symbol)
            else:
                assert target == symbol == open_kinds.pop() + 3
            deepest = max(deepest, len(open_kinds))
        assert not open_kinds
    assert deepest == 4


def test_all_nestings_of_a_length_and_depth_are_equally_frequent() -> None:
    nestings = Counter(
        tuple(target == IGNORED for target in targets)
        for _, targets in make_strings(BracketsConfig(alphabet=2, depth=3), 8, 2600)
    )
    assert len(nestings) == 13, "of the 14 of length 8 one is four deep"
    assert max(nestings.values()) < 1.4 * min(nestings.values())


@pytest.mark.parametrize(
    ("generator", "length", "chance"),
    [
        (DuplicationConfig(alphabet=4), 20, 1 / 4),
        (CopyConfig(alphabet=4), 20, 5 / 21),
        (CopyConfig(alphabet=4), 3, 1 / 4),
        (RecallConfig(alphabet=9, pairs=3), 20, 1 / 5),
        (InContextRecallConfig(values=4), 20, 1 / 4),
        (FUZZY.measured, 40, 1 / 5),
        (SelectiveCopyConfig(alphabet=5, copied=4), 20, 1 / 5),
        (MemorisationConfig(facts=4), 20, 1 / 4),
        (InductionConfig(alphabet=5), 20, 1 / 5),
        (BracketsConfig(alphabet=4, depth=2), 20, 1 / 4),
    ],
    ids=lambda value: value.kind if isinstance(value, GeneratorConfig) else None,
)
def test_the_best_single_symbol_is_right_as_often_as_chance_says(
    generator: GeneratorConfig, length: int, chance: float
) -> None:
    assert generator.chance([length]) == pytest.approx(chance)
    frequencies = Counter(answer for _, targets in make_strings(generator, length, 700) for answer in answers(targets))
    assert max(frequencies.values()) / frequencies.total() == pytest.approx(chance, abs=0.04)


def test_a_run_knows_chance_and_that_every_question_has_an_answer() -> None:
    data = GeneratedDataConfig(generator=CopyConfig(alphabet=4), evaluation=StringEvaluationConfig(lengths=(3, 18)))
    config = RunConfig(task=StringsConfig(), data=data)
    known = {reference.name: reference.value for reference in references(config, "val/accuracy")}
    assert known == {"chance": pytest.approx(21 / 4 / 23), "every answer": 1.0}
    addition = config.override({"data.generator": AdditionConfig()})
    assert references(config, "val/nats") == () == references(addition, "val/accuracy")


OTHERWISE = {
    "alphabet": 7, "keys": 9, "values": 9, "key_length": 1, "value_length": 1, "shortest_key": 2, "noise": 0.5,
    "noise_symbols": 4, "copied": 3, "facts": 8, "dictionary": 1, "depth": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "generator",
    [FUZZY, SelectiveCopyConfig(), MemorisationConfig(), InductionConfig(), BracketsConfig()],
    ids=lambda generator: generator.kind,
)
def test_every_field_changes_strings(generator: GeneratorConfig) -> None:
    for name in field_types(type(generator)):
        changed = generator.override({name: OTHERWISE[name]})
        assert [*make_strings(changed, 40, 5)] != [*make_strings(generator, 40, 5)], name


@pytest.mark.parametrize(
    ("generator", "length", "message"),
    [
        ({"kind": "in_context_recall", "keys": 2, "key_length": 3}, 40, "key_length 3 takes as many different symbols"),
        ({"kind": "in_context_recall", "values": 2, "value_length": 3}, 40, "value_length 3 takes .* values has 2"),
        ({"kind": "in_context_recall", "shortest_key": 2}, 40, "shortest_key 2 is longer than key_length, 1"),
        ({"kind": "in_context_recall", "noise": 0.5}, 40, "noise 0.5 does not go with 0 noise_symbols; set both"),
        ({"kind": "in_context_recall", "noise_symbols": 5}, 40, "noise 0 does not go with 5 noise_symbols"),
        ({"kind": "in_context_recall", "noise": 1.0}, 40, "noise"),
        ({"kind": "in_context_recall"}, 2, "max_length 2 is .*: a pair and the question for it take 3 inputs"),
        ({"kind": "selective_copy"}, 32, "max_length 32 is .*: 16 symbols, .* take 33 places"),
        ({"kind": "memorisation"}, 1, "max_length 1 is .*: a key and the place for its value take 2 symbols"),
        ({"kind": "brackets"}, 1, "max_length 1 is too short: a pair of brackets takes 2 symbols"),
        ({"kind": "induction"}, 32, "max_length 32 is .*: some symbol comes twice for certain among 33"),
    ],
)
def test_what_cannot_be_generated_is_refused(generator: dict[str, Any], length: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GeneratedDataConfig().override({"generator": generator, "max_length": length})
