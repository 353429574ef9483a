"""Several sources of labelled examples in batches of one source each: which source, which examples, in which order."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import DataConfig, DataError, MixedData, SourceSamplingConfig
from datamodules.core.permutations import shuffled
from datamodules.floors.measure import floors
from datamodules.labelled.sampling import BLOCK, MixedOrder, drawn_sources
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError

LISTOPS = {"kind": "listops", "validation": 11, "test": 5, "depth": 2, "arguments": 3, "shortest": 4, "longest": 24}
SMALL, LARGE = {"train": 10} | LISTOPS, {"train": 45} | LISTOPS
SAMPLINGS: dict[str, Any] = {
    "proportional": "proportional",
    "uniform": "uniform",
    "temperature": {"kind": "temperature", "temperature": 5},
    "annealed": {"kind": "annealed", "batches": 1500, "epochs": 5},
}
COUNTS, ROWS, SEED = (3, 10, 200), 4, 7


def mixed(**fields: Any) -> MixedData:
    sources = {"large": LARGE, "small": SMALL}
    config = DataConfig.from_dict({"kind": "mixed", "sources": sources, "batch_size": 4, "window": 8} | fields)
    data = config.build()
    assert isinstance(data, MixedData)
    return data


def batches(data: MixedData, count: int) -> list[LabelledBatch]:
    return [*islice(data.training().batches(), count)]


def exponent_by_hand(sampling: dict[str, Any] | str, batch: int) -> float:
    """Of the published formulas; of annealed sampling arXiv:1902.02671, section 3.3, whose epochs begin at 1."""
    match sampling:
        case {"kind": "annealed"}:
            epoch = min(batch // 300, 4) + 1
            return 1 - 0.8 * (epoch - 1) / (5 - 1)
        case {"kind": "temperature"}:
            return 1 / 5
    return {"proportional": 1.0, "uniform": 0.0}[str(sampling)]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_order_is_that_of_a_loop_that_draws_one_batch_after_another(name: str) -> None:
    """Whichever window is read first, of an order that nobody has read from before."""
    sampling, order, chance = SAMPLINGS[name], list[tuple[int, int]](), dict[int, Any]()
    taken = [0] * len(COUNTS)
    for batch in range(2 * BLOCK):
        block, place = divmod(batch, BLOCK)
        numbers = chance.setdefault(block, np.random.default_rng([SEED, block, 1]).random(BLOCK))
        weights = [count ** exponent_by_hand(sampling, batch) for count in COUNTS]
        ends = [end / sum(weights) for end in accumulate(weights)]
        source = next(number for number, end in enumerate(ends) if numbers[place] < end)
        for _ in range(ROWS):
            epoch, ordinal = divmod(taken[source], COUNTS[source])
            order.append((source, int(shuffled(COUNTS[source], SEED, epoch)[ordinal])))
            taken[source] += 1
    for start, stop in ((0, 40), (BLOCK * ROWS - 8, BLOCK * ROWS + 8), (6001, 6030), (8, 12)):
        fresh = MixedOrder(COUNTS, SourceSamplingConfig.from_dict(sampling), ROWS, SEED)
        assert [(source, ordinal) for source, ordinal in fresh.slice(start, stop)] == order[start:stop]


def test_sources_are_drawn_as_often_as_the_rule_says() -> None:
    """Within four standard deviations; the annealed rule begins proportional and ends with an exponent of 0.2."""
    sizes = np.array(COUNTS, float)
    drawn: dict[str, Any] = {}
    for name, sampling in SAMPLINGS.items():
        rule = SourceSamplingConfig.from_dict(sampling)
        blocks = [drawn_sources(COUNTS, rule, SEED, block) for block in (0, 8)]
        drawn[name] = [np.bincount(block[:300], minlength=3) for block in blocks]
    for name, exponent in (("proportional", 1), ("uniform", 0), ("temperature", 0.2), ("annealed", 0.2)):
        expected = 300 * sizes**exponent / (sizes**exponent).sum()
        assert (abs(drawn[name][1] - expected) <= 4 * np.sqrt(expected) + 1).all(), (name, drawn[name], expected)
    assert drawn["annealed"][0].tolist() == drawn["proportional"][0].tolist()


def test_batches_are_of_the_source_drawn_for_them_and_read_each_example_once_in_a_pass() -> None:
    data = mixed()
    order = MixedOrder([45, 10], data.config.sampling, 4, 0)
    read = batches(data, 3 * 8)
    assert [batch.source for batch in read] == [["large", "small"][order.drawn(number).source] for number in range(24)]
    for source, size in (("large", 45), ("small", 10)):
        place = ["large", "small"].index(source)
        ordinals = [int(number) for batch in read if batch.source == source for number in batch.example]
        assert {ordinal % 2 for ordinal in ordinals} == {place}
        times = Counter(ordinal // 2 for ordinal in ordinals)
        assert max(times.values()) - min(times.get(ordinal, 0) for ordinal in range(size)) <= 2  # windows are shuffled
    single = data.of_source("small")
    example = next(batch for batch in read if batch.source == "small")
    symbols, label = single.examples.example("train", int(example.example[0]) // 2)[:2]
    assert example.inputs[0, 1 : len(symbols) + 1].tolist() == symbols.tolist() and int(example.labels[0]) == label


def test_rows_of_a_batch_have_about_the_same_length() -> None:
    """Fewer symbols of padding than in batches that are not sorted, of the same examples."""
    padding = [
        sum(int((~batch.padding_mask).sum()) for batch in batches(mixed(window=window), 32)) for window in (1, 32)
    ]
    assert padding[1] < 0.5 * padding[0]


def test_an_evaluation_reads_every_source_once_one_after_another() -> None:
    data = mixed(evaluation={"examples": 7})
    read = [*data.evaluation("validation").batches()]
    assert [source for source, _ in sorted({batch.source: None for batch in read}.items())] == ["large", "small"]
    names = [batch.source for batch in read]
    assert names == sorted(names)
    ordinals = torch.cat([batch.example for batch in read]).tolist()
    assert Counter(ordinal % 2 for ordinal in ordinals) == {0: 7, 1: 7} and len({*ordinals}) == 14
    assert data.example_name(3) == "small: validation:1"


def test_floors_of_a_task_are_those_of_its_source_and_learn_from_as_many_batches() -> None:
    data = mixed()
    read = Counter(batch.source for batch in batches(data, 24))
    assert {source: data.batches_of(source, 24) for source in read} == read and min(read.values()) > 0
    values = floors(data, "small_nats", 24)
    assert values == floors(data.of_source("small"), "nats", read["small"]) != floors(data, "large_nats", 24)
    assert data.batches_of("small", BLOCK + 8) - data.batches_of("small", BLOCK) == Counter(
        batch.source for batch in batches(data, BLOCK + 8)[BLOCK:]
    ).get("small", 0)
    with pytest.raises(DataError, match="no predictor of several sources has a value of mean_score"):
        floors(data, "mean_score", 4)


def test_sources_of_different_symbols_are_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    with pytest.raises(
        DataError, match=r"data\.sources\.other: its symbols .* the symbols of large; give all sources one"
    ):
        mixed(sources={"large": LARGE, "other": {"kind": "needle", "train": 9}}).training()
    for name in ("mean", "two words", "_hidden"):
        with pytest.raises(ConfigError, match=f"{name!r} cannot be the name of a source; use another word"):
            mixed(sources={name: LARGE})
    with pytest.raises(ConfigError, match="sources is empty; set"):
        mixed(sources={})


def test_the_order_of_names_in_a_file_decides_nothing() -> None:
    data, turned = mixed(), mixed(sources={"small": SMALL, "large": LARGE})
    assert data.fingerprint == turned.fingerprint and data.description.to_dict() == turned.description.to_dict()
    for one, other in zip(batches(data, 9), batches(turned, 9), strict=True):
        assert one.source == other.source and torch.equal(one.inputs, other.inputs)
