"""Predictors with a cache: they equal slow ones, and see exactly the symbols that the network sees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from datamodules import (
    EvaluationConfig,
    FilesConfig,
    LagsConfig,
    LanguageDataConfig,
    RowDataConfig,
    TopicsConfig,
    WordsConfig,
)
from datamodules.floors import cache
from datamodules.floors.cache import (
    CELLS,
    ORDERS,
    CacheText,
    CacheWeights,
    VisibleContext,
    cache_counts,
    fitted_weights,
    mixed_probabilities,
)
from datamodules.floors.language import language_cache_floors, seen_text
from datamodules.floors.measure import cache_floors, measured_cache_floors
from datamodules.floors.ngrams import NgramText, ngram_nats
from datamodules.floors.rows import row_cache_floors
from datamodules.text.lags import context_losses
from lit_transformers.batch import IGNORED
from lit_transformers.mixers import AttentionConfig, ConvolutionConfig, LinearConfig, WindowConfig
from lit_transformers.models import EncoderConfig, LanguageModelConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.reach import visible_context
from lit_transformers.runs.run_floors import document_floors
from lit_transformers.runs.run_floors import floors as floors_of_run
from lit_transformers.tasks import MaskedLMConfig, PermutationLMConfig

WORDS = [
    b"to be or not to be",
    b"that is the question",
    b"whether tis nobler in the mind to suffer",
    b"b",
    b"to or not",
]
EVERYTHING = VisibleContext(memory=None)


def texts(seed: int, size: int = 3, count: int = 4, length: int = 40) -> CacheText:
    """Random texts of few symbols; of each prediction another stretch is seen, of some nothing."""
    random = np.random.default_rng(seed)
    symbols = np.concatenate([[size, *random.integers(0, size, length)] for _ in range(count)])
    last = np.arange(len(symbols))
    starts = last // (length + 1) * (length + 1)
    first = np.minimum(np.maximum(starts, last - random.integers(-1, length, len(last))), last + 1)
    return CacheText(symbols, size, last, first, random.integers(0, size, len(last)))


def slow_probability(text: CacheText, number: int, symbol: int, static: float, weights: CacheWeights) -> float:
    """The probability of a symbol by the definition, from the static one."""
    seen = text.symbols[text.first[number] : text.last[number] + 1].tolist()
    probability = static
    for order, of_cells in zip(ORDERS, weights.cache, strict=True):
        context = seen[len(seen) - order :]
        if len(context) < order:
            break
        followers = Counter(
            seen[place]
            for place in range(order, len(seen))
            if seen[place - order : place] == context and seen[place] != text.boundary
        )
        if followers:
            times, kinds = (
                sum(edge <= value for edge in edges)
                for edges, value in ((cache.TIMES, followers.total()), (cache.KINDS, len(followers)))
            )
            weight = of_cells[times * (len(cache.KINDS) + 1) + kinds]
            probability = (1 - weight) * probability + weight * followers[symbol] / followers.total()
    return probability


@pytest.mark.parametrize("seed", range(3))
def test_a_cache_is_that_of_the_definition_and_its_probabilities_sum_to_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, random = texts(seed), np.random.default_rng(seed)
    shares = random.dirichlet(np.ones(2))
    weights = CacheWeights(shares, random.random((len(ORDERS), CELLS)))
    static = random.dirichlet(np.ones(text.boundary), size=(2, len(text.last)))
    total = np.zeros(len(text.last))
    for symbol in range(text.boundary):
        asked = text._replace(targets=np.full(len(text.last), symbol))
        probability = mixed_probabilities(static[..., symbol], cache_counts(asked), weights)
        expected = [
            slow_probability(text, number, symbol, float(shares @ static[:, number, symbol]), weights)
            for number in range(len(text.last))
        ]
        assert probability == pytest.approx(expected, rel=1e-12)
        total += probability
        monkeypatch.setattr(cache, "MOST_PREDICTIONS", 7)
        parts = [mixed_probabilities(static[:, p, symbol], cache_counts(seen), weights) for p, seen in asked.parts()]
        assert np.array_equal(np.concatenate(parts), probability)
    assert total == pytest.approx(1, abs=1e-12)


def test_fitted_weights_make_what_they_are_fitted_on_more_likely() -> None:
    random = np.random.default_rng(0)
    static = random.uniform(0.05, 0.4, (3, len(texts(0).last)))
    repeated = np.tile(random.integers(0, 8, 12), 14)[: len(texts(0).last)]
    text = texts(0)._replace(symbols=repeated, targets=np.append(repeated[1:], 0), boundary=8)
    counts = [*cache_counts(text)]
    weights = fitted_weights(static, counts)
    assert weights.static.sum() == pytest.approx(1) and ((weights.cache > 0) & (weights.cache < 1)).all()
    likely = np.log(mixed_probabilities(static, counts, weights)).mean()
    for other in (0.0, 0.3, 0.9):
        assert (
            likely
            > np.log(mixed_probabilities(static, counts, weights._replace(cache=weights.cache * 0 + other))).mean()
        )
    for number in range(3):
        alone = weights._replace(static=np.eye(3)[number], cache=weights.cache * 0)
        assert np.log(weights.static @ static).mean() >= np.log(mixed_probabilities(static, counts, alone)).mean()


@pytest.fixture
def play(tmp_path: Path) -> LanguageDataConfig:
    for split, documents in (("train", WORDS * 4), ("validation", WORDS[::-1])):
        (tmp_path / split).mkdir()
        for number, text in enumerate(documents):
            (tmp_path / split / f"{number}.txt").write_bytes(text + b" %d" % number)
    source = FilesConfig(path=str(tmp_path), splits="folders")
    return LanguageDataConfig(source=source, segment_length=8, batch_size=2)


def visible_to_a_network(
    data: LanguageDataConfig, context: VisibleContext
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """The document, the target, and the inputs that a network sees, of each position that the evaluation scores."""
    before: dict[int, list[int]] = {}
    for batch in data.build().val_dataloader():
        for lane in range(batch.inputs.size(0)):
            if batch.fresh[lane]:
                before[lane] = []
            row = batch.inputs[lane][batch.padding_mask[lane]].tolist()
            memory = before.get(lane, [])
            remembered = memory[len(memory) - context.memory :] if context.memory else []
            remembered = memory if context.memory is None or context.memory >= len(memory) else remembered
            for place, target in enumerate(batch.targets[lane].tolist()):
                if target != IGNORED:
                    seen = [*remembered, *row[: place + 1]]
                    seen = seen if context.window is None else seen[max(len(seen) - context.window, 0) :]
                    yield int(batch.document[lane, place]), target, tuple(seen)
            before[lane] = [*memory, *row]


@pytest.mark.parametrize(
    "context",
    [VisibleContext(0), VisibleContext(5), EVERYTHING, VisibleContext(5, 3), VisibleContext(None, 11)],
    ids=lambda context: f"memory {context.memory} window {context.window}",
)
@pytest.mark.parametrize(
    "changes",
    [{}, {"documents": "stream"}, {"evaluation.stride": 3}, {"documents": "stream", "evaluation.stride": 3}],
    ids=["reset", "stream", "overlapping rows", "overlapping rows of a stream"],
)
def test_a_cache_sees_what_the_network_sees_at_each_position(
    play: LanguageDataConfig, changes: dict[str, Any], context: VisibleContext
) -> None:
    config = play.override(changes)
    data = config.build()
    stream, documents = data.documents("validation").evaluation(EvaluationConfig().limit), []
    while (item := stream.take()) is not None:
        documents.append(item[1])
    text, order = seen_text(data, documents, context)
    found = [
        (target, tuple(text.symbols[first : last + 1].tolist()))
        for target, first, last in zip(text.targets.tolist(), text.first, text.last, strict=True)
    ]
    expected = [(target, seen) for _, target, seen in visible_to_a_network(config, context)]
    assert sorted(found) == sorted(expected)
    assert text.targets[order].tolist() == [*b"".join(document.text for document in documents)]
    whole, order = seen_text(data, documents, None)
    begun = [bytes(text.text)[:place] for text in documents for place in range(len(text.text))]
    seen = [
        bytes(s for s in whole.symbols[whole.first[n] : whole.last[n] + 1].tolist() if s < whole.boundary)
        for n in order
    ]
    assert seen == begun


def static_probabilities(training: Sequence[bytes], evaluated: Sequence[bytes]) -> np.ndarray[Any, Any]:
    encoded = [[np.frombuffer(text, np.uint8) for text in texts] for texts in (training, evaluated)]
    return np.exp(-np.stack([*ngram_nats(NgramText.of(encoded[0], encoded[1], 256, 6))]))


def test_weights_are_fitted_on_the_last_documents_of_training_and_never_on_what_is_measured(
    play: LanguageDataConfig,
) -> None:
    """Here all parts are put together by hand."""
    data = play.build()
    stream, read = data.documents("train").training(play.seed), []
    for _ in range(20):
        item = stream.take()
        assert item is not None
        read.append(item[1])
    held_out = 1
    while sum(len(one.text) for one in read[-held_out:]) < 0.1 * sum(len(one.text) for one in read):
        held_out += 1
    measured = list(data.texts("validation"))
    context = VisibleContext(5)
    text, order = seen_text(data, read[: -held_out - 1 : -1], context)
    static = np.empty((7, len(order)))
    static[:, order] = static_probabilities(
        [one.text for one in read[:-held_out]], [one.text for one in read[: -held_out - 1 : -1]]
    )
    weights = fitted_weights(static, [*cache_counts(text)])
    text, order = seen_text(data, measured, context)
    static = np.empty((7, len(order)))
    static[:, order] = static_probabilities([one.text for one in read], [one.text for one in measured])
    nats = -np.log(mixed_probabilities(static, cache_counts(text), weights))
    values = language_cache_floors(data, "nats", 1000, context)
    assert values == {"n-gram model with a cache of up to 13 bytes": pytest.approx(nats.mean(), rel=1e-12)}
    assert language_cache_floors(data, "bpb", 1000, context) == {
        "n-gram model with a cache of up to 13 bytes": pytest.approx(nats.mean() / math.log(2))
    }


def test_no_reach_is_no_cache_and_a_reach_of_all_is_the_whole_document(play: LanguageDataConfig) -> None:
    data = play.build()
    document = language_cache_floors(data, "nats", 1000, None)["n-gram model with a cache of the whole document"]
    for context in (EVERYTHING, VisibleContext(10**6), VisibleContext(None, 10**6)):
        [value] = language_cache_floors(data, "nats", 1000, context).values()
        assert value == pytest.approx(document, rel=1e-12)
    [nothing] = language_cache_floors(data, "nats", 1000, VisibleContext(window=0)).values()
    text, _ = seen_text(data, [*data.texts("validation")], VisibleContext(window=0))
    assert all(not counts.times.any() for counts in cache_counts(text))
    values = [value for m in (0, 8) for value in language_cache_floors(data, "nats", 1000, VisibleContext(m)).values()]
    assert len({nothing, *values, document}) == 4
    joined = play.override({"documents": "stream"}).build()
    assert [*language_cache_floors(joined, "nats", 1000, None).values()] == pytest.approx([document], rel=0.2)
    [all_documents] = language_cache_floors(joined, "nats", 1000, EVERYTHING).values()
    assert all_documents != pytest.approx(document)


def test_a_single_document_of_training_is_divided_and_a_measured_one_teaches_no_weights(
    play: LanguageDataConfig, tmp_path: Path
) -> None:
    assert language_cache_floors(play.override({"evaluation.split": "train"}).build(), "nats", 1000, None) == {}
    for split in ("train", "validation"):
        (tmp_path / "one" / split).mkdir(parents=True)
        (tmp_path / "one" / split / "a.txt").write_bytes(b" ".join(WORDS))
    source = FilesConfig(path=str(tmp_path / "one"), splits="folders")
    config = LanguageDataConfig(source=source, segment_length=8, batch_size=2)
    assert len(language_cache_floors(config.build(), "nats", 1000, None)) == 1
    assert language_cache_floors(config.override({"evaluation.split": "train"}).build(), "nats", 1000, None) == {}


def test_who_knows_the_first_lag_is_a_floor_of_who_sees_the_second_one_too() -> None:
    source = LagsConfig(symbols=8, lags=(8, 24), shares=(0.45, 0.45), length=512, documents=200)
    data = LanguageDataConfig(source=source, tokenizer="characters", segment_length=16, batch_size=8)  # type: ignore[arg-type]
    copy = source.first_lag()
    assert copy is not None and copy[:2] == (8, 24)
    right, wrong = copy.probability, (1 - copy.probability) / 7
    exact = context_losses(8, (8, 24), (0.45, 0.45))
    assert -right * math.log2(right) - 7 * wrong * math.log2(wrong) == pytest.approx(exact[1])
    equal, total = 0, 0
    losses = []
    for document in data.build().texts("validation"):
        for place, letter in enumerate(document.text):
            is_equal = place >= 8 and document.text[place - 8] == letter
            losses.append(-math.log2((right if is_equal else wrong) if place >= 8 else 1 / 8))
            equal, total = equal + is_equal, total + (place >= 8)
    assert equal / total == pytest.approx(right, abs=0.02)
    name = "copy of the character 8 back"
    assert language_cache_floors(data.build(), "bpb", 50, None)[name] == pytest.approx(fmean(losses))
    assert language_cache_floors(data.build(), "bpb", 50, VisibleContext(32))[name] == pytest.approx(fmean(losses))
    partial = language_cache_floors(data.build(), "bpb", 50, VisibleContext(8))[name]
    assert fmean(losses) <= partial < exact[0]
    assert name not in language_cache_floors(data.build(), "bpb", 50, VisibleContext(7))
    assert source.override({"lags": (8,), "shares": (0.9,)}).first_lag() is None


def rows_of(config: RowDataConfig, batches: Iterable[Any]) -> list[tuple[int, list[int], list[int]]]:
    return [
        (
            int(batch.example[row]),
            *(part[row][batch.padding_mask[row]].tolist() for part in (batch.inputs, batch.targets)),
        )
        for batch in batches
        for row in range(batch.inputs.size(0))
        if batch.padding_mask[row].any()
    ]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("predicted", ["", "forward", "backward"])
def test_a_cache_of_a_row_holds_what_is_not_to_be_predicted(
    predicted: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TopicsConfig(openers=2, forms=2, topics=2, words=4, content=1, sentences=4, documents=40, validation=0.3)
    config = RowDataConfig(source=source, tokenizer=WordsConfig(), length=14, batch_size=4)
    data = config.build()
    special = {data.description.vocabulary.boundary, data.description.separator, data.description.mask}
    expected: list[tuple[int, int, int, int]] = []
    for _, inputs, targets in rows_of(config, data.val_dataloader()):
        original = [s if t == IGNORED else t for s, t in zip(inputs, targets, strict=True)]
        hidden = [t != IGNORED and not predicted for t in targets]
        for place, symbol in enumerate(original):
            if (hidden[place] if not predicted else symbol not in special) is False:
                continue
            near = [
                p for p in range(len(original))
                if not hidden[p] and (window is None or abs(p - place) <= window)
                and not (predicted == "forward" and p >= place) and not (predicted == "backward" and p <= place)
            ]  # fmt: skip
            for kind, step in enumerate((0, -1, 1)):
                if (predicted, step) in (("forward", 1), ("backward", -1)):
                    continue
                followers = Counter(
                    original[p] for p in near
                    if original[p] not in special
                    and (step == 0 or {p + step, place + step} <= {*near})
                    and (step == 0 or original[p + step] == original[place + step])
                )  # fmt: skip
                expected.append((kind, followers.total(), len(followers), followers[symbol]))
    found: list[tuple[int, int, int, int]] = []

    def keep(static: Any, counts: Any, weights: CacheWeights) -> Any:
        kinds = {"": (0, 1, 2), "forward": (0, 1), "backward": (0, 2)}[predicted]
        for kind, part in zip(kinds, counts, strict=True):
            found.extend((kind, *row) for row in zip(*(p.tolist() for p in part), strict=True))
        return mixed_probabilities(static, counts, weights)

    monkeypatch.setattr("datamodules.floors.rows.mixed_probabilities", keep)
    metric = f"{predicted}_nats" if predicted else "nats"
    [value] = row_cache_floors(data, metric, 30, VisibleContext(window=window)).values()
    assert sorted(found) == sorted(expected) and 0 < value < math.log(data.description.vocabulary.size)
    assert row_cache_floors(data, metric.replace("nats", "accuracy"), 30, None) == {}


def test_weights_of_rows_are_fitted_on_rows_of_training_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TopicsConfig(openers=2, forms=2, topics=2, words=4, content=1, sentences=4, documents=40, validation=0.3)
    data = RowDataConfig(source=source, tokenizer=WordsConfig(), length=14, batch_size=4).build()
    training = rows_of(data.config, islice(data.train_dataloader(), 30))
    fitted: list[int] = []
    counted: list[int] = []

    def keep(static: Any, counts: Any) -> CacheWeights:
        fitted.append(static.shape[1])
        return fitted_weights(static, counts)

    def count(training: Any, evaluated: Any, side: int, unigram: Any) -> Any:
        counted.append(len(training.symbols))
        return bigram(training, evaluated, side, unigram)

    from datamodules.floors.rows import bigram

    monkeypatch.setattr("datamodules.floors.rows.fitted_weights", keep)
    monkeypatch.setattr("datamodules.floors.rows.bigram", count)
    row_cache_floors(data, "nats", 30, None)
    held = sum(t != IGNORED for example, _, targets in training if example % 10 == 0 for t in targets)
    everything = sum(t != IGNORED for _, _, targets in training for t in targets)
    assert held and fitted == [held] and counted == [everything - held] * 2 + [everything] * 2


def test_what_a_network_sees_follows_from_its_windows_memories_and_state() -> None:
    data = LanguageDataConfig(segment_length=32)
    seen = {
        AttentionConfig(): (0, None),
        AttentionConfig(memory=64): (64, None),
        WindowConfig(window=(8, 16), memory=16): (16, 8),
        LinearConfig(): (None, None),
        ConvolutionConfig(kernel=5): (None, 5),
    }
    for mixer, expected in seen.items():
        model = LanguageModelConfig(dim=8, heads=2, depth=2, mixer=mixer)
        assert visible_context(RunConfig(model=model, data=data)) == expected
    longer = RunConfig(model=LanguageModelConfig(mixer=AttentionConfig(memory=8)), data=data)
    assert visible_context(longer.override({"task.evaluation": {"mixer.memory": 99}})) == (99, None)
    encoder = RunConfig(model=EncoderConfig(mixer=WindowConfig(window=4)), data=RowDataConfig(), task=MaskedLMConfig())
    assert visible_context(encoder) == (0, 4)
    convolution = EncoderConfig(mixer=ConvolutionConfig(kernel=(7, 3)), depth=2)
    assert visible_context(encoder.override({"model": convolution})) == (0, 3)
    for task in (PermutationLMConfig(order="all"), PermutationLMConfig(segment_length=8)):
        assert visible_context(encoder.override({"model": EncoderConfig(), "task": task})) is None


def test_a_run_has_the_floors_of_what_it_sees_and_apart_those_of_the_document(
    play: LanguageDataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    config = RunConfig(data=play).override({"training.steps": 30, "model.mixer": AttentionConfig(memory=4)})
    name = "n-gram model with a cache of up to 12 bytes"
    expected = cache_floors(play.build(), "bpb", 30, VisibleContext(4))[name]
    assert {floor.name: floor.value for floor in floors_of_run(config, "val/bpb")}[name] == expected
    [document] = document_floors(config, "val/bpb")
    assert document.name.endswith("the whole document") and document.value != expected
    assert document_floors(config.override({"model.mixer": LinearConfig()}), "val/bpb") == ()

    def measure_again(*arguments: object) -> dict[str, float]:
        raise AssertionError("measured again")

    measure_again.dispatch = cache_floors.dispatch  # type: ignore[attr-defined]
    monkeypatch.setattr("datamodules.floors.measure.cache_floors", measure_again)
    assert measured_cache_floors(play.build(), "bpb", 30, VisibleContext(4))[name] == expected
    for context in (VisibleContext(5), VisibleContext(4, 3)):
        with pytest.raises(AssertionError, match="measured again"):
            measured_cache_floors(play.build(), "bpb", 30, context)
