"""Floors equal slow predictors, in the unit of the metric, on the data that a run trains on and is measured on."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from datamodules import (
    DataError,
    EvaluationConfig,
    FilesConfig,
    GeneratedDataConfig,
    JsonPairsConfig,
    LabelledDataConfig,
    LanguageDataConfig,
    MaskedSumConfig,
    MaskTokensConfig,
    PairDataConfig,
    RecallConfig,
    ReviewsConfig,
    RowDataConfig,
    TopicsConfig,
    WordsConfig,
)
from datamodules.floors import measure
from datamodules.floors.generated_texts import first_sentences, word_table
from datamodules.floors.measure import floors, measured_floors
from datamodules.floors.ngrams import NgramText, ngram_nats
from lit_transformers.batch import IGNORED, RowBatch
from lit_transformers.config import ConfigError
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.run_floors import floors as floors_of_run
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.training.config import TrainingConfig

PLAY = [b"to be or not to be", b"that is the question", b"whether tis nobler in the mind to suffer", b"b"]


def witten_bell(training: Sequence[bytes], evaluated: Sequence[bytes], order: int) -> list[float]:
    """-log p of every evaluated byte, one after another, by the definition."""
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def context(text: bytes, place: int, length: int) -> tuple[int, ...]:
        return (*(256,) * (length - place), *text[max(place - length, 0) : place])

    for text in training:
        for place, byte in enumerate(text):
            for length in range(order + 1):
                followers[context(text, place, length)][byte] += 1

    def probability(byte: int, seen: tuple[int, ...]) -> float:
        shorter = probability(byte, seen[1:]) if seen else 1 / 256
        after = followers[seen]
        return (after[byte] + len(after) * shorter) / (after.total() + len(after)) if after else shorter

    return [-math.log(probability(byte, context(text, p, order))) for text in evaluated for p, byte in enumerate(text)]


def test_ngram_models_are_those_of_the_definition() -> None:
    training, evaluated = PLAY[:2], [*PLAY[2:], b"to be the question, \xff"]
    encode = [[np.frombuffer(text, np.uint8) for text in texts] for texts in (training, evaluated)]
    for order, nats in enumerate(ngram_nats(NgramText.of(*encode, 256, 4))):
        assert nats == pytest.approx(witten_bell(training, evaluated, order), rel=1e-12)


@pytest.fixture
def play(tmp_path: Path) -> LanguageDataConfig:
    for split, texts in (("train", PLAY * 2), ("validation", PLAY[::-1])):
        (tmp_path / split).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / split / f"{number}.txt").write_bytes(text + b" %d" % number)
    source = FilesConfig(path=str(tmp_path), splits="folders")
    return LanguageDataConfig(source=source, segment_length=8, batch_size=2, evaluation=EvaluationConfig(bytes=20))


def test_they_learn_from_what_training_reads_and_are_measured_on_what_validation_reads(
    play: LanguageDataConfig,
) -> None:
    data = play.build()
    evaluated: defaultdict[int, list[int]] = defaultdict(list)
    for batch in data.val_dataloader():
        for document, target in zip(batch.document.flatten(), batch.targets.flatten(), strict=True):
            if target != IGNORED:
                evaluated[int(document)].append(int(target))
    assert len(evaluated) == 2
    stream = data.documents("train").training(play.seed)
    passes = [stream.take() for _ in range(16)]
    training = [item[1].text for item in passes if item is not None]
    for batches, documents in (
        (1, 1),
        (1000, 8),
    ):  # 16 symbols are less than a document; a thousand batches, many passes
        nats = witten_bell(training[:documents], [bytes(evaluated[n]) for n in sorted(evaluated)], 3)
        bits = sum(nats) / len(nats) / math.log(2)
        assert floors(data, "bpb", batches)["n-gram model, 3 bytes of context"] == pytest.approx(bits)


def test_a_floor_has_the_unit_of_the_metric(play: LanguageDataConfig) -> None:
    data = play.override({"tokenizer": WordsConfig()}).build()
    nats, perplexity = (floors(data, metric, 9)["n-gram model, 1 word of context"] for metric in ("nats", "perplexity"))
    assert perplexity == pytest.approx(math.exp(nats)) and len(floors(data, "nats", 9)) == 6
    with pytest.raises(DataError, match="no n-gram model of words has a value of bpb"):
        floors(data, "bpb", 9)


def test_chance_of_answers_is_that_of_one_symbol_or_one_answer() -> None:
    config = GeneratedDataConfig(generator=RecallConfig(alphabet=4, pairs=1, filled=False), max_length=4)
    data = config.build()
    answers = [int(row[row != IGNORED]) for batch in data.val_dataloader() for row in batch.targets]
    trained = Counter(int(row[row != IGNORED]) for batch in islice(data.train_dataloader(), 3) for row in batch.targets)
    most = max(Counter(answers).values()) / len(answers)
    assert floors(data, "accuracy", 3) == {"most frequent symbol": most}
    assert floors(data, "accuracy@4", 3) == {"most frequent symbol": most}
    share = answers.count(trained.most_common(1)[0][0]) / len(answers)
    assert floors(data, "sequence_accuracy", 3) == {"most frequent answer": share}
    nats = [-math.log((trained[answer] + 1) / (trained.total() + 5)) for answer in answers]
    assert floors(data, "nats", 3) == {"frequencies of symbols": pytest.approx(sum(nats) / len(nats))}
    for metric, message in (("accuracy@9", "no string .* accuracy@9"), ("bleu", "no chance of answers .* bleu")):
        with pytest.raises(DataError, match=message):
            floors(data, metric, 3)


def test_classes_are_predicted_by_the_most_frequent_one_and_by_a_linear_model(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("test", 20)):
        labels = ["neg" if number % 4 == 0 else "pos" for number in range(count)]
        lines = [
            {"text": f"{number} {'dull' if label == 'neg' else 'fine'}", "label": label}
            for number, label in enumerate(labels)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = LabelledDataConfig(source=ReviewsConfig(path=str(tmp_path), length=20), batch_size=8).build()
    common, linear = "frequencies of classes", "logistic regression over bags of n-grams"
    assert floors(data, "accuracy", 5) == {common: 0.75, linear: 1.0}
    nats = floors(data, "nats", 5)
    trained = Counter(int(label) for batch in islice(data.train_dataloader(), 5) for label in batch.labels)
    entropy = -0.75 * math.log((trained[1] + 1) / 42) - 0.25 * math.log((trained[0] + 1) / 42)
    assert nats[common] == pytest.approx(entropy) and nats[linear] < entropy / 2


def test_numbers_are_predicted_by_their_mean() -> None:
    source = MaskedSumConfig(length=12, ones=2, levels=4, train=30, validation=20, test=1)
    data = LabelledDataConfig(source=source, batch_size=10).build()
    training, evaluated = (
        np.concatenate([batch.labels.numpy() for batch in batches]).astype(float)
        for batches in (islice(data.train_dataloader(), 3), data.val_dataloader())
    )
    error = float(((evaluated - training.mean()) ** 2).mean())
    assert floors(data, "mse", 3)["mean of the labels"] == pytest.approx(error)
    assert floors(data, "nats", 3)["mean of the labels"] == pytest.approx(error / 2)
    assert floors(data, "pearson", 3)["mean of the labels"] == 0


def test_relations_are_predicted_by_their_frequencies() -> None:
    source = TopicsConfig(openers=2, forms=2, topics=2, words=4, content=1, sentences=4, documents=40, validation=0.3)
    config = RowDataConfig(source=source, tokenizer=WordsConfig(), length=14, batch_size=4, packing="segment_pair")
    data = config.override({"relation": "sentence_order"}).build()
    trained = [r for batch in islice(data.train_dataloader(), 30) for r in batch.relation.tolist()]
    evaluated = [r for batch in data.val_dataloader() for r in batch.relation.tolist()]
    share = (sum(trained) + 1) / (len(trained) + 2)
    nats = fmean(-math.log(share if relation else 1 - share) for relation in evaluated)
    assert floors(data, "relation_nats", 30) == {"frequencies of relations": pytest.approx(nats)}
    right = fmean(relation == (share > 0.5) for relation in evaluated)
    assert floors(data, "relation_accuracy", 30) == {"frequencies of relations": pytest.approx(right)}
    pairs = data.config.override({"evaluation.pairs": 3, "length": 16}).build()
    expected = data.config.override({"length": 16}).build()
    assert floors(pairs, "relation_nats", 30) == floors(expected, "relation_nats", 30)
    assert floors(pairs, "nats", 30) == floors(expected, "nats", 30), "minimal pairs are not counted"
    assert floors(pairs, "order_accuracy", 30) == floors(pairs, "pairs_accuracy", 30) == {"a guess": 0.5}
    with pytest.raises(DataError, match=r"without a relation of segments have no relation_nats; set data\.relation"):
        floors(config.build(), "relation_nats", 30)


def test_hidden_symbols_are_predicted_by_their_frequencies_and_by_what_stands_beside_them() -> None:
    source = TopicsConfig(openers=2, forms=2, topics=2, words=4, content=1, sentences=4, documents=40, validation=0.3)
    data = RowDataConfig(source=source, tokenizer=WordsConfig(), length=14, batch_size=4).build()

    def hidden(batches: Iterable[RowBatch]) -> list[tuple[int, int, int]]:
        """The hidden symbols, each with the symbols to its left and right."""
        return [
            (int(batch.inputs[row, place - 1]), int(batch.targets[row, place]), int(batch.inputs[row, place + 1]))
            for batch in batches
            for row, place in (batch.targets != IGNORED).nonzero().tolist()
        ]

    trained, evaluated = hidden(islice(data.train_dataloader(), 30)), hidden(data.val_dataloader())
    size = data.description.vocabulary.size
    counts = Counter(symbol for _, symbol, _ in trained)
    frequency = {symbol: (counts[symbol] + 1) / (counts.total() + size) for symbol in range(size)}
    most = max(range(size), key=lambda symbol: frequency[symbol])
    nats, accuracy = floors(data, "nats", 30), floors(data, "accuracy", 30)
    assert nats["frequencies of symbols"] == pytest.approx(fmean(-math.log(frequency[s]) for _, s, _ in evaluated))
    assert accuracy["frequencies of symbols"] == pytest.approx(fmean(s == most for _, s, _ in evaluated))
    for side, name in ((0, "the symbol to the left"), (2, "the symbol to the right")):
        beside: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for item in trained:
            beside[item[side]][item[1]] += 1
        losses, rights = [], []
        for item in evaluated:
            known = beside[item[side]]
            weight = {s: known[s] + len(known) * frequency[s] for s in range(size)} if known else frequency
            losses.append(-math.log(weight[item[1]] / (known.total() + len(known) if known else 1)))
            rights.append(item[1] == (max(known, key=lambda s: weight[s]) if known else most))
        assert nats[name] == pytest.approx(fmean(losses)) and accuracy[name] == pytest.approx(fmean(rights), abs=0.02)
    assert nats["the symbol to the left"] < 0.8 * nats["frequencies of symbols"]
    with pytest.raises(DataError, match="no predictor of hidden symbols has a value of bpb"):
        floors(data, "bpb", 30)


def test_symbols_that_a_language_model_of_rows_predicts_are_all_of_them_from_the_side_that_it_has_read() -> None:
    """They are those of rows in which all symbols are predicted and none is hidden."""
    source = TopicsConfig(openers=2, forms=2, topics=2, words=4, content=1, sentences=4, documents=40, validation=0.3)
    data = RowDataConfig(source=source, tokenizer=WordsConfig(), length=14, batch_size=4)
    in_place = data.override({"noise": MaskTokensConfig(rate=0.99, unchanged=1.0, replaced=0.0)}).build()
    for unit in ("nats", "accuracy"):
        expected = floors(in_place, unit, 30)
        for direction, side in (("forward", "the symbol to the left"), ("backward", "the symbol to the right")):
            values = floors(data.build(), f"{direction}_{unit}", 30)
            assert values == pytest.approx({name: expected[name] for name in ("frequencies of symbols", side)})


def test_a_table_of_words_has_the_partners_of_the_largest_coefficient() -> None:
    texts = [("the cat sleeps.", "le chat dort."), ("the dog", "le chien"), ("a cat", "un chat"), ("the", "le")]
    assert word_table(texts) == {
        "the": "le", "cat": "chat", "sleeps": "dort", ".": "dort", "dog": "chien", "a": "un",
    }  # fmt: skip
    assert word_table([]) == {}


def test_sentences_end_at_marks_before_space_and_at_lines() -> None:
    text = "  Version 2.0 is here! Is it?\n\nYes\n it is. "
    assert [first_sentences(text, count) for count in (1, 2, 3)] == [
        "Version 2.0 is here!",
        "Version 2.0 is here! Is it?",
        "Version 2.0 is here! Is it? Yes",
    ]


def test_texts_are_scored_as_copies_by_a_table_and_by_first_sentences(tmp_path: Path) -> None:
    texts = [("one two three four six. Seven.", "eins zwei drei vier sechs. Sieben.")] * 3
    for split in ("train", "validation"):
        lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in texts)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    config = PairDataConfig(source=JsonPairsConfig(path=str(tmp_path)), tokenizer="bytes", tokens_per_batch=300)  # type: ignore[arg-type]
    scores = floors(config.build(), "bleu", 10)
    assert scores["copy of the source"] < 20 and list(scores) == ["copy of the source", "table of words"]
    rouge = floors(config.build(), "rougeL", 10)
    assert list(rouge) == ["first sentence", "first 2 sentences", "first 3 sentences"]
    assert 0 <= floors(config.build(), "accuracy", 10)["most frequent symbol"] < 0.5


def test_floors_know_words_as_the_score_of_the_run_does(tmp_path: Path) -> None:
    """Here a table of words knows nearly all, in a script without spaces."""
    rows = np.random.default_rng(0).permuted(np.tile(np.arange(9), (40, 1)), axis=1)[:, :6]
    texts = [(" ".join("abcdefghi"[k] for k in row), "".join("甲乙丙丁戊己庚辛壬"[k] for k in row)) for row in rows]
    for split in ("train", "validation"):
        lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in texts)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    source = JsonPairsConfig(path=str(tmp_path), languages=("en", "zh"))
    data = PairDataConfig(source=source, tokenizer="bytes", tokens_per_batch=300)  # type: ignore[arg-type]
    model, training = EncoderDecoderConfig(dim=8, heads=2, depth=1), TrainingConfig(steps=50)
    config = RunConfig(model=model, task=Seq2SeqConfig(), data=data, training=training)

    def value(config: RunConfig, metric: str, floor: str) -> float:
        return {reference.name: reference.value for reference in floors_of_run(config, metric)}[floor]

    assert value(config, "val/bleu", "table of words") > 80
    unnamed = config.override({"data.source.languages": None})
    assert value(unnamed, "val/bleu", "table of words") < 1
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps({"source": b, "target": b}) + "\n" for _, b in texts))
    assert value(config, "val/rougeL", "first sentence") == 100
    assert value(unnamed, "val/rougeL", "first sentence") == 0


def test_a_floor_is_measured_once_for_the_same_data_metric_budget_code_and_processor(
    play: LanguageDataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    values = measured_floors(play.build(), "bpb", 9)

    def measure_again(data: object, metric: str, batches: int) -> dict[str, float]:
        raise DataError("measured again")

    measure_again.dispatch = floors.dispatch  # type: ignore[attr-defined]
    monkeypatch.setattr(measure, "floors", measure_again)
    assert measured_floors(play.build(), "bpb", 9) == values
    for data, metric, batches in ((play, "bpb", 8), (play, "nats", 9), (play.override({"batch_size": 3}), "bpb", 9)):
        with pytest.raises(DataError, match="measured again"):
            measured_floors(data.build(), metric, batches)
    for name, other in (("code_from_outside", lambda module: "edited"), ("processor_model", lambda: ("another",))):
        with monkeypatch.context() as changed, pytest.raises(DataError, match="measured again"):
            changed.setattr(measure, name, other)
            measured_floors(play.build(), "bpb", 9)
    [path] = (tmp_path / "cache").glob("floors/*/value.json")
    path.write_text("[]")
    with pytest.raises(DataError, match=r"damaged cache; remove this folder and it is made again"):
        measured_floors(play.build(), "bpb", 9)


def test_a_run_has_floors_of_its_metric_for_the_batches_that_it_trains_on(play: LanguageDataConfig) -> None:
    config = RunConfig(data=play).override({"training.steps": 3, "training.accumulate": 2})
    values = {floor.name: floor.value for floor in floors_of_run(config, "val/bpb")}
    expected = floors(play.build(), "bpb", 6)
    assert {name: values[name] for name in expected} == expected
    with pytest.raises(ConfigError, match="measured/seconds is no score of predictions"):
        floors_of_run(config, "measured/seconds")


def test_predictors_of_a_run_that_trains_nothing_learn_from_what_its_source_read(tmp_path: Path) -> None:
    """So do those of a compression after training, and of several in a row."""
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"word{n % 3} of {n},{n % 2}\n" for n in range(80)))
    source = {"kind": "labelled_texts", "path": str(tmp_path / "texts.csv"), "labels": ["0", "1"], "splits": "hash"}
    data = {"kind": "labelled", "source": source | {"tokenizer": {"kind": "words", "size": 10}, "length": 10}}
    model = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1}
    trained = RunConfig.from_dict({"model": model, "task": "classification", "data": data, "training": {"steps": 3}})

    def after(config: RunConfig) -> RunConfig:
        return config.override({"start.network": {"run": config.to_dict()}, "training.steps": 0})

    expected = floors_of_run(trained, "val/nats")
    assert floors_of_run(after(trained), "val/nats") == expected == floors_of_run(after(after(trained)), "val/nats")
    with pytest.raises(DataError, match="reads no batch of these data"):
        floors_of_run(after(trained.override({"data.batch_size": 7})).override({"data.batch_size": 8}), "val/nats")
