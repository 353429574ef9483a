"""Tags of words: entities as seqeval has them, the vectors of words, words beyond a row, and the same numbers in any
batch, on two ranks and in lines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from forked import training
from seqeval.metrics import classification_report
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Tokens
from test_predict import of, predicted, saved
from torch import Tensor

from lit_transformers.batch import IGNORED, LabelledBatch, LabelledDescription, Vocabulary, WordTagLabels
from lit_transformers.config import ConfigError
from lit_transformers.entities import SCHEMES, EntityRules, Scheme, entities_of_words, scheme_of
from lit_transformers.heads.tag_label import word_vectors, words_in
from lit_transformers.inference.predict_tags import word_places
from lit_transformers.runs import RunConfig, fit
from lit_transformers.scores import ENTITY_COLUMNS, entity_counts, entity_ratio, entity_score
from lit_transformers.tasks.tagging import Tagging

STRICT = {"IOB1": IOB1, "IOB2": IOB2, "IOBES": IOBES, "BILOU": BILOU}
TYPES = ("x", "y", "a-b")
WORDS = ("Ada", "Bo", "Cy", "sees", "in", "New", "York", ".")
ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1, "positions": "sinusoidal", "initial_std": 0.3}


def tags_of(scheme: Scheme) -> list[str]:
    """Tags of three types, and ones without a type, as odd files have them."""
    return ["O", *(f"{prefix}-{kind}" for prefix in SCHEMES[scheme].prefixes if prefix != "O" for kind in TYPES), "B"]


def sentences_of(names: Sequence[str], count: int, seed: int) -> list[list[str]]:
    random = Random(seed)
    return [[random.choice(names) for _ in range(random.randint(1, 9))] for _ in range(count)]


def numbered(sentences: Sequence[Sequence[str]], names: Sequence[str]) -> Tensor:
    tags = torch.full((len(sentences), max(map(len, sentences))), IGNORED)
    for row, sentence in enumerate(sentences):
        tags[row, : len(sentence)] = torch.tensor([names.index(tag) for tag in sentence])
    return tags


@pytest.mark.parametrize("scheme", STRICT)
def test_entities_are_those_of_seqeval_in_its_strict_mode(scheme: Scheme) -> None:
    names = tags_of(scheme)
    rules, sentences = EntityRules(names, scheme), sentences_of(names, 1200, 0)
    spans = rules.spans(numbered(sentences, names))
    for row, sentence in enumerate(sentences):
        expected = {(own.start, own.end, own.tag) for own in Tokens(sentence, STRICT[scheme]).entities}
        starts = spans.begins[row].nonzero()[:, 0].tolist()
        own = {(start, int(spans.stops[row, start]), rules.types[int(spans.types[row, start])]) for start in starts}
        assert own == expected, sentence


@pytest.mark.parametrize("scheme", STRICT)
def test_precision_recall_and_f1_are_those_of_seqeval(scheme: Scheme) -> None:
    names, random = tags_of(scheme), Random(1)
    true = sentences_of(names, 150, 2)
    guessed = [[tag if random.random() < 0.8 else random.choice(names) for tag in sentence] for sentence in true]
    labels = torch.stack([numbered(true, names), torch.zeros_like(numbered(true, names))], dim=2)
    parts = entities_of_words(EntityRules(names, scheme), numbered(guessed, names), labels)
    sums = dict(zip(ENTITY_COLUMNS, (part.sum(dim=1).numpy() for part in parts), strict=True))
    for chosen in (slice(None), slice(3), slice(0, 0)):
        some = {name: column[chosen] for name, column in sums.items()}
        ours = {name: float(entity_score(name, some)) for name in ("precision", "recall", "f1")}
        report: Any = {"micro avg": {"precision": 0.0, "recall": 0.0, "f1-score": 0.0}}
        if len(true[chosen]):
            given = {"mode": "strict", "scheme": STRICT[scheme], "output_dict": True, "zero_division": 0}
            report = classification_report(true[chosen], guessed[chosen], **given)
        expected = report["micro avg"]
        assert ours == pytest.approx({name: expected["f1-score" if name == "f1" else name] for name in ours})
    totals = entity_counts("f1", sums).sum(axis=0)
    of_totals = entity_ratio("f1", np.stack([totals, 2 * totals]))
    assert of_totals.tolist() == pytest.approx([float(entity_score("f1", sums))] * 2)


def test_a_scheme_follows_from_the_prefixes_of_tags() -> None:
    assert scheme_of(["O", "B-x", "I-x"]) == scheme_of(["B-x"]) == "IOB2"
    assert scheme_of(["O", "B-x", "S-x"]) == "IOBES" and scheme_of(["O", "U-x", "L-x", "B-x"]) == "BILOU"
    assert scheme_of(["O"]) is scheme_of(["O", "NOUN"]) is scheme_of(["O", "B-x"], "none") is None
    assert scheme_of(["O", "E-x", "U-x"]) is None and scheme_of(["NOUN"], "IOB1") == "IOB1"


def test_seen_entities_are_counted_apart_from_those_that_training_has_not() -> None:
    """Of the words a b c d: training has the entities "a b" and "d"."""
    known = [0b10, 0, 0, 0b1]
    labels = torch.tensor([[[1, known[0]], [2, known[1]], [1, known[2]], [1, known[3]]]])
    predicted_tags = torch.tensor([[1, 2, 1, 0]])
    parts = entities_of_words(EntityRules(["O", "B-x", "I-x"], "IOB2"), predicted_tags, labels)
    sums = {name: [int(part.sum())] for name, part in zip(ENTITY_COLUMNS, parts, strict=True)}
    assert sums == dict(zip(ENTITY_COLUMNS, ([2], [2], [3], [1], [1], [1]), strict=True))
    assert {name: float(entity_score(name, sums)) for name in ("seen_f1", "seen_recall", "unseen_f1")} == {
        "seen_f1": pytest.approx(2 / 3), "seen_recall": 0.5, "unseen_f1": 1.0,
    }  # fmt: skip
    cut_short = entities_of_words(EntityRules(["O", "B-x", "I-x"], "IOB2"), torch.tensor([[1, 0, 0, 0]]), labels)
    assert int(cut_short[4].sum()) == 1, '"a" alone is no entity of training'


def test_the_vector_of_a_word_is_that_of_its_pieces() -> None:
    hidden, numbers = torch.randn(2, 6, 3), torch.tensor([[0, 1, 1, 2, 0, 0], [0, 1, 2, 2, 2, 3]])
    words = numbers[:, None, :] == torch.arange(1, 4)[:, None]
    expected = {
        "first": [hidden[0, [1, 3]], hidden[1, [1, 2, 5]]],
        "last": [hidden[0, [2, 3]], hidden[1, [1, 4, 5]]],
        "mean": [
            torch.stack([hidden[0, 1:3].mean(0), hidden[0, 3]]),
            torch.stack([hidden[1, 1], hidden[1, 2:5].mean(0), hidden[1, 5]]),
        ],
    }
    for word, (first, second) in expected.items():
        vectors = word_vectors(hidden, words, word)  # type: ignore[arg-type]
        torch.testing.assert_close(vectors[0, :2], first)
        torch.testing.assert_close(vectors[1], second)
        assert vectors.isfinite().all()


def config_of(folder: Path, **changes: Any) -> RunConfig:
    """A run on sentences whose names are entities, one sentence of each split longer than a row."""
    for split, count in (("train", 60), ("dev", 23)):
        random, lines = Random(split), list[str]()
        for number in range(count):
            for word in random.choices(WORDS, k=random.randint(3, 8) if number else 20):
                tag = "B-name" if word in WORDS[:3] else {"New": "B-place", "York": "O"}.get(word, "O")
                lines.append(f"{word}\t{tag}")
            lines.append("")
        (folder / f"{split}.conll").write_text("\n".join([*lines, "Ada\tB-name", "York\tI-name", ""]))
    source = {"kind": "conll", "path": str(folder), "length": 32}
    data = {"kind": "labelled", "source": source, "batch_size": 8, "window": 3}
    steps = {"steps": 12, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 5e-3}}
    plain = {"model": ENCODER, "task": {"kind": "tagging"}, "data": data, "training": steps}
    return RunConfig.from_dict(plain).override(changes)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return config_of(tmp_path_factory.mktemp("tags"))


def built(config: RunConfig) -> Tagging:
    torch.manual_seed(0)
    task = config.build_task(config.data.build())
    assert isinstance(task, Tagging)
    return task.eval()


def measured(config: RunConfig, task: Tagging) -> dict[str, float]:
    task.metric.reset()
    with torch.no_grad():
        for number, batch in enumerate(config.data.build().val_dataloader()):
            task.validation_step(batch, number)
    return task.metric.compute()


def test_measures_are_those_of_a_loop_over_words_and_of_seqeval(config: RunConfig) -> None:
    """Words beyond the row count as wrong, as O, and with the nats of a uniform distribution."""
    task, data = built(config).double(), config.data.build()
    names = data.description.labels.names
    nats, right, words, true, guessed = 0.0, 0, 0, list[list[str]](), list[list[str]]()
    for ordinal in range(data.examples.count("validation")):
        example = data.examples.example("validation", ordinal)
        row = torch.tensor([[data.description.vocabulary.boundary, *example.symbols]])
        [hidden] = task.network.read_row(row, None, torch.zeros_like(row, dtype=torch.bool)).hidden
        true.append([names[tag] for tag, _ in example.label])
        guessed.append([])
        for number, (tag, _) in enumerate(example.label, start=1):
            places = [place for place, word in enumerate(example.words, start=1) if word == number]
            words += 1
            if not places:
                nats += math.log(len(names))
                guessed[-1].append("O")
                continue
            log_probabilities = task.label_head.map(hidden[places[0]]).log_softmax(dim=0).detach()
            nats -= float(log_probabilities[tag])
            right += int(log_probabilities.argmax()) == tag
            guessed[-1].append(names[int(log_probabilities.argmax())])
    results = measured(config, task)
    assert results["nats"] == pytest.approx(nats / words) and results["accuracy"] == right / words
    report = classification_report(true, guessed, mode="strict", scheme=IOB2, output_dict=True, zero_division=0)
    assert results["f1"] == pytest.approx(report["micro avg"]["f1-score"]) and results["f1"] > 0
    rows = task.metric.per_document()
    assert sum(row.cut for row in rows) > 0 and sum(row.tokens for row in rows) == words


def test_numbers_do_not_depend_on_batches_windows_padding_or_workers(config: RunConfig) -> None:
    task = built(config).double()
    expected = measured(config, task)
    for changes in (
        {"data.evaluation.batch_size": 5},
        {"data.window": 1},
        {"data.padding": "fixed"},
        {"data.workers": 2},
    ):
        assert measured(config.override(changes), task) == pytest.approx(expected, rel=1e-9), changes


@pytest.mark.parametrize("word", ["first", "mean", "last"])
def test_padding_and_labels_of_words_beyond_the_row_change_no_loss(config: RunConfig, word: str) -> None:
    task = built(config.override({"task.word": word})).double()
    batch: LabelledBatch = next(iter(config.data.build().train_dataloader()))
    loss = task.training_step(batch, 0)["loss"]
    more, nothing = torch.full((len(batch.inputs), 4), 3), torch.zeros(len(batch.inputs), 4, dtype=torch.long)
    assert batch.words is not None
    padded = batch._replace(
        inputs=torch.cat([batch.inputs, more], dim=1),
        padding_mask=torch.cat([batch.padding_mask, nothing.bool()], dim=1),
        words=torch.cat([batch.words, nothing], dim=1),
        labels=torch.cat([batch.labels, torch.full((len(batch.labels), 2, 2), IGNORED)], dim=1),
        padded=True,
    )
    torch.testing.assert_close(task.training_step(padded, 0)["loss"], loss)
    has_token = words_in(batch).any(dim=2)
    others = torch.where(has_token[..., None], batch.labels, batch.labels.clamp(min=0))
    assert not torch.equal(others, batch.labels)
    torch.testing.assert_close(task.training_step(batch._replace(labels=others), 0)["loss"], loss)


@pytest.mark.slow
def test_two_ranks_measure_the_f1_of_one(config: RunConfig, tmp_path: Path) -> None:
    training(config.override({"training.devices": 2}), tmp_path / "together").finish()
    record = json.loads((tmp_path / "together" / "record.json").read_text())
    expected = fit(config, tmp_path / "alone")
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4) and record["metrics"]["val/f1"] > 0


def test_a_line_is_tagged_as_a_sentence_of_the_data_is(config: RunConfig, tmp_path: Path) -> None:
    """From the checkpoint alone, whether its words are given or found in a text."""
    checkpoint, network = saved(config, tmp_path)
    data = config.build_data()
    assert isinstance(network, Tagging)
    expected = {}
    for batch in data.val_dataloader():
        with torch.no_grad():
            expected |= {tagged.document: tagged.probabilities for tagged in network.predict_step(batch, 0)}
    documents = data.examples.corpus.documents("validation")
    sentences = [data.examples.texts_of(documents[number].text)[0].decode().split() for number in sorted(expected)]
    results = predicted(of(checkpoint, "json"), *map(json.dumps, sentences))
    for number, (words, result) in enumerate(zip(sentences, results, strict=True)):
        best = [None if own is None else max(own) for own in expected[number]]
        names = data.description.labels.names
        assert result["words"] == words and result["probabilities"] == pytest.approx(best, abs=1e-5)
        assert result["tags"] == [None if own is None else names[own.index(max(own))] for own in expected[number]]
        guessed = [tag or "O" for tag in result["tags"]]
        entities = [(own.tag, [own.start, own.end]) for own in Tokens(guessed, IOB2).entities]
        assert [(own["type"], own["words"]) for own in result["entities"]] == entities
        for own in result["entities"]:
            start, stop = own["words"]
            assert own["probability"] == pytest.approx(math.prod(result["probabilities"][start:stop]), abs=1e-4)
            assert own["text"] == " ".join(words[start:stop]) and "characters" not in own
    assert None in results[0]["tags"], "a word beyond the row has no tag"
    text = "  Ada  sees Bo."
    [found] = predicted(of(checkpoint), text)
    assert found["words"] == ["Ada", "sees", "Bo", "."]
    assert found["tags"] == predicted(of(checkpoint, "json"), json.dumps({"words": found["words"]}))[0]["tags"]
    assert all(text[slice(*own["characters"])] == own["text"] for own in found["entities"])
    empty = dict.fromkeys(("words", "tags", "probabilities", "entities"))
    assert predicted(of(checkpoint, "json"), "[]", '{"text": ""}') == [empty, empty]
    with pytest.raises(ValueError, match=r'line 1: has a word that is empty or no text; give \{"words"'):
        predicted(of(checkpoint, "json"), '["Ada", ""]')


def test_words_of_a_text_are_letters_and_single_signs() -> None:
    text = "@ada's state-of-the-art U.S. #tag, (ok)…"
    words = [text[start:stop] for start, stop in word_places(text)]
    assert words == ["@ada's", "state-of-the-art", "U.S", ".", "#tag", ",", "(", "ok", ")", "…"]


def test_labels_of_another_kind_are_refused() -> None:
    vocabulary = Vocabulary(size=9, boundary=0, unit="byte", byte_lengths=None)
    classes = LabelledDescription.for_probe(vocabulary, 8)
    config = RunConfig.from_dict({"model": ENCODER, "task": "tagging", "data": {"kind": "labelled"}})
    with pytest.raises(ConfigError, match="needs word_tags, and the column 'label' of these data holds classes"):
        config.task.build(config.model, classes, config.training)
    tags = WordTagLabels(names=("NOUN", "VERB"))
    described = LabelledDescription(vocabulary=vocabulary, length=8, labels=tags)
    restored = LabelledDescription.from_dict(json.loads(json.dumps(described.to_dict())))
    assert restored == described and {*config.task.measures(described)} == {"nats", "accuracy"}
