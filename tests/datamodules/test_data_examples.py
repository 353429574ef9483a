"""Generated examples: their labels are true, and their distribution is the documented one."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import (
    DataError,
    Example,
    LabelledDataConfig,
    ListOpsConfig,
    MaskedSumConfig,
    NeedleConfig,
    SyntheticConfig,
)
from datamodules.labelled.listops import OPERATORS, SYMBOLS
from lit_transformers.config import ConfigError

SHORT = ListOpsConfig(shortest=4, longest=60)
NEEDLE = NeedleConfig(length=12, distance=5, classes=3, noise=7)
SUM = MaskedSumConfig(length=20, ones=4, levels=8)
seeds = st.integers(0, 2**32)
few_examples = settings(max_examples=200)


def make_examples(config: SyntheticConfig, count: int = 4_000) -> list[Example]:
    source = config.build()
    return [source.example("train", ordinal) for ordinal in range(count)]


def words(example: Example) -> list[str]:
    return [SYMBOLS[symbol] for symbol in example.symbols]


def evaluate(remaining_words: Iterator[str]) -> int | None:
    """Returns the value of the expression that ``remaining_words`` begin with, or None at the end of a list."""
    word = next(remaining_words)
    if word == "]":
        return None
    if word.isdigit():
        return int(word)
    values = []
    while (inner := evaluate(remaining_words)) is not None:
        values.append(inner)
    operators = {
        "MIN": min,
        "MAX": max,
        "MED": lambda numbers: int(median(numbers)),
        "SM": lambda numbers: sum(numbers) % 10,
    }
    return operators[word.removeprefix("[")](values)


def arguments(example: Example) -> Iterator[int]:
    """Yields the number of arguments of each list, in the order in which the lists end."""
    open_lists: list[int] = []
    for word in words(example):
        if word == "]":
            yield open_lists.pop()
            continue
        if open_lists:
            open_lists[-1] += 1
        if word.startswith("["):
            open_lists.append(0)


def depth(example: Example) -> int:
    """Returns the number of nested levels, of which the digits are the innermost."""
    level = deepest = 0
    for word in words(example):
        level += word.startswith("[") - (word == "]")
        deepest = max(deepest, level)
    return deepest + 1


def test_the_oracle_reads_the_example_of_the_paper() -> None:
    paper = "[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]"
    assert evaluate(iter(paper.split(" "))) == 5


@few_examples
@given(seeds)
def test_a_label_of_listops_is_what_the_list_says(seed: int) -> None:
    example = SHORT.make(Random(seed))
    remaining_words = iter(words(example))
    assert evaluate(remaining_words) == example.label
    assert next(remaining_words, None) is None, "symbols after the outermost list"


@pytest.mark.parametrize(("levels", "most"), [(2, 3), (3, 5), (10, 10)])
def test_lists_keep_to_their_depth_arguments_and_length(levels: int, most: int) -> None:
    examples = make_examples(ListOpsConfig(shortest=4, longest=40, depth=levels, arguments=most), 2_000)
    assert all(4 <= len(example.symbols) <= 40 for example in examples)
    assert {depth(example) for example in examples} <= set(range(2, levels + 1))
    assert max(map(depth, examples)) >= min(levels, 5)
    assert {count for example in examples for count in arguments(example)} == set(range(2, most + 1))


def test_lists_are_drawn_as_published() -> None:
    """Operators, digits and argument counts from 2 to 10 are uniform, and a quarter of the arguments are lists."""
    config = ListOpsConfig(shortest=4, longest=1_000_000, depth=3)
    examples = [config.make(Random(seed)) for seed in range(6_000)]
    operators = Counter(word for example in examples for word in words(example)[:1])
    assert set(operators) == {f"[{name}" for name in OPERATORS}
    assert all(abs(count / 6_000 - 0.25) < 0.03 for count in operators.values())
    outermost = Counter(list(arguments(example))[-1] for example in examples)
    assert set(outermost) == set(range(2, 11))
    assert all(abs(count / 6_000 - 1 / 9) < 0.02 for count in outermost.values())
    lists = sum(word.startswith("[") for example in examples for word in words(example)) - 6_000
    assert abs(lists / sum(list(arguments(example))[-1] for example in examples) - 0.25) < 0.01
    digits = Counter(word for example in examples for word in words(example) if word.isdigit())
    assert all(abs(count / digits.total() - 0.1) < 0.01 for count in digits.values()) and len(digits) == 10


@pytest.mark.slow
def test_lists_of_the_arena_are_long_and_their_classes_unequal() -> None:
    examples = make_examples(ListOpsConfig(), 400)
    assert all(500 < len(example.symbols) < 2_000 for example in examples)
    assert 800 < fmean(len(example.symbols) for example in examples) < 1_200
    assert all(depth(example) <= 10 for example in examples)
    classes = Counter(example.label for example in examples)
    assert set(classes) == set(range(10))
    assert 0.13 < max(classes.values()) / 400 < 0.3


@pytest.mark.slow
def test_no_list_of_validation_was_trained_on() -> None:
    source = ListOpsConfig(shortest=24, longest=64).build()
    training_lists = {source.example("train", ordinal).symbols.tobytes() for ordinal in range(1_500)}
    assert not training_lists & {source.example("validation", ordinal).symbols.tobytes() for ordinal in range(300)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shortest": 9, "longest": 8}, "longest 8 leaves no length"),
        ({"shortest": 1, "longest": 3}, "longest 3 leaves no length"),
        ({"depth": 2, "arguments": 4}, "no list of depth 2 and 4 arguments has 501 symbols"),
    ],
)
def test_lists_that_cannot_be_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ListOpsConfig(**changes)


def test_lists_that_hardly_ever_are_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.labelled.listops.TRIES", 50)
    with pytest.raises(DataError, match="of 50 lists none has 1000 to 1000 symbols"):
        ListOpsConfig(shortest=1_000, longest=1_000, depth=4).build()


@few_examples
@given(seeds)
def test_a_needle_row_holds_two_needles_far_apart_and_its_class_is_their_sum(seed: int) -> None:
    example = NEEDLE.make(Random(seed))
    assert len(example.symbols) == 12
    places = [place for place, symbol in enumerate(example.symbols) if symbol >= 7]
    assert len(places) == 2 and places[1] - places[0] >= 5
    assert example.label == sum(int(example.symbols[place]) - 7 for place in places) % 3
    assert example.symbols.max() < NEEDLE.description.vocabulary.boundary


@pytest.mark.slow
def test_needles_lie_anywhere_they_may() -> None:
    pairs = Counter(tuple((e.symbols >= 7).nonzero()[0].tolist()) for e in make_examples(NEEDLE, 6_000))
    assert set(pairs) == {(first, second) for first in range(12) for second in range(first + 5, 12)}
    assert all(abs(count / 6_000 * len(pairs) - 1) < 0.3 for count in pairs.values())


def test_without_bias_a_needle_says_nothing_of_the_class_alone() -> None:
    examples = make_examples(NeedleConfig(bias=0.0, length=9, distance=3))
    counts = Counter((int(example.symbols[example.symbols >= 16][0]) - 16, example.label) for example in examples)
    assert len(counts) == 4
    assert all(abs(count / 4_000 - 0.25) < 0.03 for count in counts.values())


def test_with_bias_guessing_one_needle_and_counting_are_worth_what_is_said() -> None:
    examples = make_examples(NeedleConfig(length=9, distance=3), 8_000)
    needles_and_labels = [([int(s) - 16 for s in example.symbols if s >= 16], example.label) for example in examples]
    assert abs(fmean(label == 0 for _, label in needles_and_labels) - 5 / 8) < 0.02
    assert abs(fmean(label == needles[0] for needles, label in needles_and_labels) - 6 / 8) < 0.02
    assert abs(fmean(label == min(sum(needles), 1) for needles, label in needles_and_labels) - 7.5 / 8) < 0.02


@pytest.mark.parametrize(("classes", "bias"), [(2, 0.5), (2, 0.0), (5, 0.3)])
def test_what_is_known_of_needles_and_sums_is_what_constant_guesses_get(classes: int, bias: float) -> None:
    needles = NeedleConfig(length=20, distance=5, classes=classes, bias=bias, train=4000)
    labels = [example.label for example in make_examples(needles)]
    known = needles.known_values()
    likeliest = max(labels.count(label) for label in range(classes)) / 4000
    assert known.metric == "accuracy" and known.values["the likeliest class"] == pytest.approx(likeliest, abs=0.03)
    sums = MaskedSumConfig(length=20, ones=3, levels=4, train=4000)
    assert sums.known_values().values["no summand"] == pytest.approx(
        fmean((example.label - 1.5) ** 2 for example in make_examples(sums)), rel=0.1
    )
    assert LabelledDataConfig(source=sums).known_values() == sums.known_values()


def test_needles_are_marked_on_request() -> None:
    plain, marked = (
        NeedleConfig(length=9, distance=3, marked=marking).make(Random(0)) for marking in ("first", "needles")
    )
    assert plain.marked is None
    assert marked.marked == tuple((marked.symbols >= 16).nonzero()[0])
    assert (plain.symbols == marked.symbols).all()


def test_needles_too_far_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 symbols hold no two that are 8 apart"):
        NeedleConfig(length=8, distance=8)


@few_examples
@given(seeds)
def test_a_masked_sum_is_the_sum_of_what_is_marked(seed: int) -> None:
    example = SUM.make(Random(seed))
    assert len(example.symbols) == 20
    values = [(int(symbol) - 8 + 0.5) / 8 for symbol in example.symbols if symbol >= 8]
    assert len(values) == 4
    assert example.label == pytest.approx(sum(values))
    assert all(0 < number < 1 for number in values)


def test_guessing_half_of_the_ones_errs_as_documented() -> None:
    errors = [(example.label - 2) ** 2 for example in make_examples(SUM, 8_000)]
    assert fmean(errors) == pytest.approx(4 * (1 - 8**-2) / 12, rel=0.05)


def test_every_position_is_marked_as_often() -> None:
    places = Counter(place for example in make_examples(SUM) for place in (example.symbols >= 8).nonzero()[0].tolist())
    assert all(abs(places[place] / 4_000 - 0.2) < 0.03 for place in range(20))


def test_more_ones_than_positions_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 positions cannot hold 10 ones"):
        MaskedSumConfig(length=3)


OTHER: list[tuple[SyntheticConfig, str, object]] = [
    *((config, "seed", 1) for config in (SHORT, NEEDLE, SUM)),
    (SHORT, "depth", 4),
    (SHORT, "arguments", 5),
    (SHORT, "shortest", 30),
    (SHORT, "longest", 30),
    (NEEDLE, "length", 13),
    (NEEDLE, "distance", 6),
    (NEEDLE, "classes", 4),
    (NEEDLE, "bias", 0.1),
    (NEEDLE, "noise", 8),
    (NEEDLE, "marked", "needles"),
    (SUM, "length", 21),
    (SUM, "ones", 5),
    (SUM, "levels", 9),
]


@pytest.mark.parametrize(("config", "path", "other"), OTHER, ids=str)
def test_every_field_changes_examples_and_the_fingerprint(config: SyntheticConfig, path: str, other: object) -> None:
    original, changed = config.build(), config.override({path: other}).build()
    examples = [
        [(e.symbols.tolist(), e.label, e.marked) for e in map(example_at, range(50))]
        for example_at in (lambda n: original.example("train", n), lambda n: changed.example("train", n))
    ]
    assert examples[0] != examples[1]
    assert original.fingerprint != changed.fingerprint


@pytest.mark.parametrize("config", [SHORT, NEEDLE, SUM], ids=lambda config: config.kind)
def test_an_example_is_the_same_whenever_it_is_asked_for_and_splits_differ(config: SyntheticConfig) -> None:
    first, second = config.build(), config.build()
    assert first.fingerprint == second.fingerprint
    first.example("train", 0)
    assert (first.example("test", 7).symbols == second.example("test", 7).symbols).all()
    splits = {tuple(first.example(split, 0).symbols.tolist()) for split in ("train", "validation", "test")}
    assert len(splits) == 3


def test_the_fingerprint_is_known_to_stay() -> None:
    """Every version of Python and of this code generates the same examples; else published numbers would be of other
    data."""
    assert [int(symbol) for symbol in NEEDLE.build().example("train", 0).symbols] == PINNED_NEEDLE
    assert words(SHORT.build().example("train", 0)) == PINNED_LIST.split()


PINNED_NEEDLE = [0, 9, 2, 6, 4, 3, 6, 5, 3, 2, 6, 8]
PINNED_LIST = "[MIN 8 4 8 ]"
