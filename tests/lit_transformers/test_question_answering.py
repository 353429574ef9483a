"""Question answering: scores against torchmetrics and the rules of SQuAD 2.0, decoding against brute force, answers
over windows in any batches and ranks, and answers to new questions from a checkpoint."""

from __future__ import annotations

import csv
import json
import math
import random
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import training
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.text import squad

from lit_transformers.answer_scores import answer_scores, best_threshold
from lit_transformers.batch import LabelledDescription, NumberLabels, SpanLabels, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.heads.answer_span import NO_SPAN, ResolvedAnswer, WindowAnswer, answerable, best_spans
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predict_answers import AnswerPredictor
from lit_transformers.models import ModelConfig
from lit_transformers.records.files import DOCUMENTS, OUTPUTS
from lit_transformers.runs import RunConfig, evaluate, fit, load
from lit_transformers.tasks import QuestionAnsweringConfig, Task
from lit_transformers.training.config import TrainingConfig
from reports.judge.measures import measure_of
from reports.read.measurements import read_documents

VOCABULARY = Vocabulary(size=23, boundary=0, unit="byte", byte_lengths=None)
DATA = LabelledDescription(vocabulary=VOCABULARY, length=24, labels=SpanLabels(), segments=2)
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "positions": "learned", "segments": 2}
WORDS = st.sampled_from(
    [
        *("The", "a", "an", "cat", "Cat!", "the-cat", "\u00e9", "E\u0301", "ÉTÉ", "ß", "SS", "ǅ", "1,000", "—", "¿"),
        *("\u200b", "\u00a0", "\n", "  ", ".", "'s", "theatre", "thé", "a1", "an_a", "İ", "ﬁ", "٣"),
    ]
)
TEXTS = st.lists(WORDS, max_size=5).flatmap(lambda words: st.sampled_from(["", " "]).map(lambda gap: gap.join(words)))


@settings(max_examples=200, deadline=None)
@given(answer=TEXTS, answers=st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_those_of_torchmetrics(answer: str, answers: list[str]) -> None:
    target = {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "1"}
    expected = squad([{"prediction_text": answer, "id": "1"}], [target])
    scores = answer_scores(answer, answers, may_be_none=False)
    assert scores.exact_match == float(expected["exact_match"])
    assert scores.f1 == pytest.approx(float(expected["f1"]), rel=1e-6)


def of_version_2(answer: str, answers: list[str]) -> tuple[float, float]:
    """Exact match and F1 by the definition of SQuAD 2.0 (arXiv:1806.03822): right answers that are nothing but articles
    and punctuation do not count, without any the right answer is none, and none is right alone against none."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    right = [words(text) for text in answers if words(text)] or [[]]
    own, exact, f1 = words(answer), [], []
    for one in right:
        exact.append(float(own == one))
        same = sum((Counter(own) & Counter(one)).values())
        if not own or not one:
            f1.append(float(own == one))
        elif not same:
            f1.append(0.0)
        else:
            precision, recall = same / len(own), same / len(one)
            f1.append(2 * precision * recall / (precision + recall))
    return 100 * max(exact), 100 * max(f1)


@settings(max_examples=400, deadline=None)
@given(answer=TEXTS, answers=st.lists(TEXTS, max_size=3))
def test_where_there_may_be_no_answer_scores_follow_the_second_version(answer: str, answers: list[str]) -> None:
    assert answer_scores(answer, answers, may_be_none=True) == pytest.approx(of_version_2(answer, answers))


@settings(max_examples=200, deadline=None)
@given(
    questions=st.lists(
        st.tuples(st.integers(-4, 4), st.sampled_from([0.0, 40.0, 100.0]), st.booleans()), min_size=1, max_size=9
    )
)
def test_the_best_threshold_is_that_of_brute_force(questions: list[tuple[int, float, bool]]) -> None:
    """A question is answered where its margin is at most the threshold; one without an answer has 100 if refused."""
    margins = np.array([float(margin) for margin, _, _ in questions])
    answered = np.array([0.0 if is_open else score for _, score, is_open in questions])
    refused = np.array([100.0 * is_open for _, _, is_open in questions])
    best = best_threshold(margins, answered, refused)
    scores = {t: float(np.where(margins <= t, answered, refused).mean()) for t in [-9.0, *margins.tolist()]}
    assert best.score == pytest.approx(max(scores.values()))
    assert float(np.where(margins <= best.threshold, answered, refused).mean()) == pytest.approx(best.score)


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_decoding_is_the_best_of_all_valid_spans(longest: int) -> None:
    torch.manual_seed(longest)
    logits = torch.randn(40, 9, 2)
    logits[:, 1:4] = logits[:10, 6:] = logits[0, 4:] = float("-inf")  # the question, padding, and no passage at all
    for row, (score, first, last, none, total) in zip(
        logits.double(), best_spans(logits, longest).tolist(), strict=True
    ):
        spans = {
            (i, j): float(row[i, 0] + row[j, 1])
            for i in range(1, 9)
            for j in range(i, min(i + longest, 9))
            if row[i, 0].isfinite() and row[j, 1].isfinite()
        }
        assert none == pytest.approx(float(row[0].sum()))
        if not spans:
            assert score == total == NO_SPAN
            continue
        assert score == pytest.approx(max(spans.values())) == pytest.approx(spans[int(first), int(last)])
        assert total == pytest.approx(math.log(sum(map(math.exp, spans.values()))))


def built(**fields: Any) -> Task:
    torch.manual_seed(0)
    config = QuestionAnsweringConfig(**fields)
    return config.build(ModelConfig.from_dict(ENCODER), DATA, TrainingConfig()).double().eval()


def test_the_loss_is_the_mean_of_both_cross_entropies_over_the_passage_and_the_first_token() -> None:
    """Against a loop over tokens: neither the question nor a [SEP] nor padding can be an answer."""
    task = built()
    torch.manual_seed(3)
    batch = task.config.random_batch(DATA)
    real = torch.tensor([[True] * 24, [True] * 24])
    real[1, -2:] = False
    batch = batch._replace(padding_mask=real, segments=batch.segments * real, padded=True)
    reading = task.evaluation_reading(batch)
    outputs = task.heads["answer"].map(reading.hidden)
    expected = []
    for row in range(2):
        last = int(real[row].sum()) - 1
        allowed = [t for t in range(24) if t == 0 or (batch.segments[row, t] == 1 and t != last)]
        assert answerable(batch)[row].nonzero()[:, 0].tolist() == allowed
        places = (int(batch.labels[row, 0]), int(batch.labels[row, 1]) - 1)
        losses = [outputs[row, allowed, side].logsumexp(0) - outputs[row, places[side], side] for side in (0, 1)]
        expected.append(sum(losses) / 2)
    head = task.heads["answer"]
    assert torch.allclose(head.nats(head.outputs(reading, batch), batch), torch.stack(expected))
    assert int(task.heads["answer"].targets(batch)) == 2


def test_a_product_scores_each_token_by_a_vector_of_the_question() -> None:
    """Against a loop over tokens. Where the passage is read without its question, the answer still depends on it."""
    task = built(scores="product")
    torch.manual_seed(5)
    batch = task.config.random_batch(DATA)
    head = task.heads["answer"].requires_grad_(False)
    with torch.no_grad():
        reading = task.evaluation_reading(batch)
    logits = head.outputs(reading, batch)
    maps = zip(head.map.weight.split(8), head.map.bias.split(8), strict=True)
    for side, (weight, bias) in enumerate(maps):
        for row, place in answerable(batch).nonzero().tolist():
            question = weight @ reading.hidden[row, 0] + bias
            expected = float(question @ reading.hidden[row, place]) / math.sqrt(8)
            assert float(logits[row, place, side]) == pytest.approx(expected)
    assert head.flops(24) == 2 * 16 * 8 + 2 * 24 * 16
    model = ModelConfig.from_dict(ENCODER | {"kind": "deformer", "apart": 1})
    others = batch._replace(inputs=torch.where(batch.segments == 0, (batch.inputs + 3) % 23, batch.inputs))
    for scores, depends in (("linear", False), ("product", True)):
        torch.manual_seed(0)
        config = QuestionAnsweringConfig(scores=scores)
        apart = config.build(model, DATA, TrainingConfig()).double().eval()
        spans = [best_spans(apart.evaluation_output(own), 30)[0] for own in (batch, others)]
        assert (not torch.allclose(spans[0][0], spans[1][0])) == depends


def windows_of(questions: int, threshold: float | None) -> tuple[list[WindowAnswer], list[dict[str, Any]]]:
    """Windows of questions, in which scores tie across windows, and the answers of a slow loop over them."""
    chance, rows, expected = random.Random(5), [], []
    for question in range(questions):
        answers = ("red",) if chance.random() < 0.6 else ()
        own = [
            WindowAnswer(question, chance.choice([1.0, 2.0, 3.0]), start, chance.choice(["red", "blue red"]),
                         chance.choice([0.5, 2.5]), chance.uniform(3, 4), answers)
            for start in chance.sample(range(50), chance.randint(1, 4))
        ]  # fmt: skip
        rows += own
        score = max(window.score for window in own)
        best = min((window for window in own if window.score == score), key=lambda window: window.start)
        margin = min(window.none for window in own) - score
        final = "" if threshold is not None and margin > threshold else best.text
        expected.append({"margin": margin, "text": final, "answers": answers})
    chance.shuffle(rows)
    return rows, expected


@pytest.mark.parametrize("threshold", [None, -0.6])
def test_the_answer_over_windows_is_the_same_in_any_batches(threshold: float | None) -> None:
    rows, expected = windows_of(40, threshold)
    head = built(threshold=threshold).heads["answer"]
    of_question: dict[int, list[Any]] = {}
    for row in json.loads(json.dumps(rows)):
        of_question.setdefault(row[0], []).append(row)
    for question, own in of_question.items():
        wanted, columns = expected[question], head.resolved(own)
        scores = answer_scores(wanted["text"], wanted["answers"], threshold is not None)
        assert (columns["exact_match"], columns["f1"]) == pytest.approx(tuple(scores))
        assert columns["margin"] == pytest.approx(wanted["margin"])
        assert head.output(own) == {"hypothesis": wanted["text"], "references": [*wanted["answers"]] or [""]}
        assert columns["answerable"] == bool(wanted["answers"])
        windows = [WindowAnswer(*row) for row in own]
        answer, total = ResolvedAnswer.of(windows), sum(math.exp(w.total) for w in windows)
        none = min(window.none for window in windows)
        assert answer.none_probability == pytest.approx(math.exp(none) / (total + math.exp(none)))
        assert answer.probability == pytest.approx(math.exp(max(w.score for w in windows)) / (total + math.exp(none)))


def test_data_without_spans_or_passages_are_refused_in_a_line() -> None:
    encoder = ModelConfig.from_dict(ENCODER)
    one_text = LabelledDescription(vocabulary=VOCABULARY, length=24, labels=SpanLabels())
    numbers = LabelledDescription(vocabulary=VOCABULARY, length=24, labels=NumberLabels(), segments=2)
    for data, message in (
        (one_text, "rows of these data are one text; set data.source to questions"),
        (numbers, "answer_span needs spans, and the column 'label' of these data holds numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            QuestionAnsweringConfig().build(encoder, data, TrainingConfig())  # fmt: skip
    task = built()
    with pytest.raises(ConfigError, match="batches of these data have none; set passage of every Example"):
        task.validation_step(task.config.random_batch(DATA)._replace(passages=None), 0)


THRESHOLD = -0.7
NAMES = ["ada", "bob", "eve", "kim", "leo", "mia"]


def questions(folder: Path) -> Path:
    """Questions of which some are open, on passages of one to five windows."""
    chance, path = random.Random(0), folder / "questions.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(60):
            people = chance.sample(NAMES, 4)
            passage = f"In {1900 + number}: " + " ".join(f"{name} has {chance.randint(2, 9)} cats." for name in people)
            passage += " So it was, all year long." * chance.randint(0, 3)
            for name in (people[0], people[2]):
                count = re.search(f"{name} has (\\d)", passage)
                assert count
                answers = [{"text": count[1], "answer_start": count.start(1)}]
                file.write(json.dumps({"question": f"cats of {name}?", "context": passage, "answers": answers}) + "\n")
            absent = next(name for name in NAMES if name not in people)
            file.write(json.dumps({"question": f"cats of {absent}?", "context": passage, "answers": []}) + "\n")
    return path


def config_over(folder: Path, **changes: Any) -> RunConfig:
    source = {"kind": "questions", "path": str(folder / "questions.jsonl"), "language": None, "length": 60}
    plain = {
        "model": ENCODER | {"initial_std": 0.3},
        "task": {"kind": "question_answering", "threshold": THRESHOLD, "longest_answer": 4},
        "data": {"kind": "labelled", "source": source | {"stride": 24, "validation": 0.3}, "batch_size": 4},
        "training": {"steps": 6, "device": "cpu"},
    }
    return RunConfig.from_dict(plain).override(changes)


def deformer_config(folder: Path) -> RunConfig:
    """A reader whose lower layer reads questions of one width and passages apart."""
    plain = config_over(folder).to_dict()
    deformer = {"model": {**plain["model"], "kind": "deformer", "depth": 2, "apart": 1}}
    return RunConfig.from_dict(plain | deformer).override({"data.source.question_width": 16, "task.threshold": None})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("questions")
    questions(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(folder / "cache"))
        fit(config_over(folder), folder / "run")
    return folder


@pytest.fixture
def cached(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIT_CACHE", str(trained / "cache"))
    return trained


def columns(folder: Path) -> list[dict[str, float]]:
    rows = csv.DictReader((folder / DOCUMENTS).open())
    return [{name: float(value) for name, value in row.items() if name != "name"} for row in rows]


def test_a_run_measures_every_question_once_and_writes_its_sums_and_answers(cached: Path) -> None:
    """By hand from the windows of single rows: the best span of a question over its windows, and its scores."""
    folder = cached / "run"
    task, config, _ = load(folder / "checkpoint.ckpt")
    data = config.override({"data.batch_size": 1, "data.window": 1}).data.build()
    windows: dict[int, list[WindowAnswer]] = {}
    nats: Counter[int] = Counter()
    for batch in data.val_dataloader():
        with torch.no_grad():
            [row] = task.predict_step(batch, 0)
            nats[row.question] += float(task.heads["answer"].nats(task.evaluation_output(batch), batch))
        windows.setdefault(row.question, []).append(row)
    rows = columns(folder)
    assert [row["document"] for row in rows] == sorted(windows) and max(map(len, windows.values())) > 2
    outputs = [json.loads(line) for line in (folder / OUTPUTS).open()]
    for row, output in zip(rows, outputs, strict=True):
        own = windows[int(row["document"])]
        best = max(own, key=lambda window: window.score)
        margin = min(window.none for window in own) - best.score
        text = best.text if margin <= THRESHOLD else ""
        assert (row["tokens"], row["margin"]) == (len(own), pytest.approx(margin, abs=1e-4))
        assert row["nats"] == pytest.approx(nats[int(row["document"])], rel=1e-4)
        assert output == {"id": row["document"], "hypothesis": text, "references": [*own[0].answers] or [""]}
        assert (row["exact_match"], row["f1"]) == pytest.approx(of_version_2(text, [*own[0].answers]))
    metrics = json.loads((folder / "record.json").read_text())["metrics"]
    assert metrics["val/exact_match"] == pytest.approx(np.mean([row["exact_match"] for row in rows]))
    assert metrics["val/nats"] == pytest.approx(sum(nats.values()) / sum(map(len, windows.values())), rel=1e-4)
    documents = read_documents(folder / DOCUMENTS, [])
    assert documents is not None
    for metric in ("val/exact_match", "val/f1", "val/nats"):
        measure = measure_of(metric, documents.others)
        assert measure is not None
        assert float(measure.value(measure.sums(documents).sum(axis=0))) == pytest.approx(metrics[metric])


def test_the_best_threshold_that_is_measured_reaches_its_score_when_it_is_set(cached: Path) -> None:
    checkpoint = cached / "run" / "checkpoint.ckpt"
    metrics = json.loads((cached / "run" / "record.json").read_text())["metrics"]
    for name in ("exact_match", "f1"):
        again = evaluate(checkpoint, {"task.threshold": metrics[f"val/best_{name}_threshold"] + 1e-6})
        assert again[f"val/{name}"] == pytest.approx(metrics[f"val/best_{name}"])
        assert metrics[f"val/best_{name}"] >= metrics[f"val/{name}"]
    always = evaluate(checkpoint, {"task.threshold": None})
    assert always.keys() & {"val/exact_match", "val/best_f1"} == {"val/exact_match"}


@pytest.mark.slow
def test_two_ranks_measure_what_one_process_does(cached: Path, tmp_path: Path) -> None:
    """Windows of a question lie in batches of both ranks."""
    training(config_over(cached, **{"training.devices": 2}), tmp_path).finish()
    one, two = columns(cached / "run"), columns(tmp_path)
    assert [row["document"] for row in one] == [row["document"] for row in two]
    for own, other in zip(one, two, strict=True):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-3)
    answers = [(folder / OUTPUTS).read_text().splitlines() for folder in (cached / "run", tmp_path)]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_two_ranks_with_a_part_of_the_weights_each_train_layers_apart_as_one_process_does(
    cached: Path, tmp_path: Path
) -> None:
    """The lower layers are called twice in a pass, for the question and for the passage."""
    config = deformer_config(cached).override({"model.dropout": 0.0})
    expected = fit(config, tmp_path / "alone")
    training(config.override({"training.devices": 2, "training.strategy": "fsdp"}), tmp_path / "together").finish()
    record = json.loads((tmp_path / "together" / "record.json").read_text())
    assert record["outcome"] == expected["outcome"] == "finished", record["reason"]
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_a_new_question_is_answered_as_one_of_the_data_is(cached: Path) -> None:
    """In any batch and window; offsets are those of the passage, and a text that is too long is read in windows."""
    checkpoint = cached / "run" / "checkpoint.ckpt"
    outputs = [json.loads(line) for line in (cached / "run" / OUTPUTS).open()]
    _, config, _ = load(checkpoint)
    examples = config.data.build().examples
    texts = [examples.question("validation", output["id"]) for output in outputs]
    lines = [json.dumps({"question": question.text, "context": paragraph.passage}) for paragraph, question in texts]
    counts: list[tuple[int, int]] = []
    for options in ({}, {"batch_tokens": 130, "window": 7}):
        predictor = predictor_of(checkpoint, LineOptions(**options), "json")
        assert isinstance(predictor, AnswerPredictor)
        read = predictor.write((f"{line}\n".encode() for line in lines), lambda *each: counts.append(each))
        for line, output, (paragraph, _) in zip(read, outputs, texts, strict=True):
            prediction = json.loads(line)
            assert (prediction["answer"] or "") == output["hypothesis"] and 0 < prediction["probability"] <= 1
            if prediction["answer"] is not None:
                assert paragraph.passage[prediction["start"] : prediction["end"]] == prediction["answer"]
            else:
                assert prediction["start"] is prediction["end"] is None
    size = sum(len(line) + 1 for line in lines)
    assert [sum(column) for column in zip(*counts, strict=True)] == [2 * len(lines), 2 * size]
    assert {output["hypothesis"] == "" for output in outputs} == {True, False}
    tabbed = [f"{question.text}\t{paragraph.passage}\n".encode() for paragraph, question in texts]
    always = [json.loads(line) for line in predictor_of(checkpoint, LineOptions(), "text", 1e6).write(tabbed)]
    assert all(prediction["answer"] for prediction in always)


def test_a_deformer_answers_new_questions_as_it_answers_those_of_the_data(cached: Path, tmp_path: Path) -> None:
    """With questions of one width, which are padded in lines too."""
    config = deformer_config(cached)
    fit(config, tmp_path / "run")
    outputs = [json.loads(line) for line in (tmp_path / "run" / OUTPUTS).open()]
    examples = config.data.build().examples
    texts = [examples.question("validation", output["id"]) for output in outputs]
    lines = [f"{question.text}\t{paragraph.passage}\n".encode() for paragraph, question in texts]
    predicted = [
        json.loads(line) for line in predictor_of(tmp_path / "run" / "checkpoint.ckpt", LineOptions()).write(lines)
    ]
    assert [prediction["answer"] or "" for prediction in predicted] == [output["hypothesis"] for output in outputs]
    assert len({output["hypothesis"] for output in outputs}) > 1
    task, _, _ = load(tmp_path / "run" / "checkpoint.ckpt")
    windows: dict[int, list[WindowAnswer]] = {}
    for batch in config.data.build().val_dataloader():
        with torch.no_grad():
            for row in task.predict_step(batch, 0):
                windows.setdefault(row.question, []).append(row)
    probabilities = [ResolvedAnswer.of(windows[output["id"]]).probability for output in outputs]
    assert [prediction["probability"] for prediction in predicted] == pytest.approx(probabilities, abs=1e-5)
    with pytest.raises(ValueError, match=r"line 1: the question: has 22 symbols, too many with \[CLS\] "):
        [*predictor_of(tmp_path / "run" / "checkpoint.ckpt", LineOptions()).write([b"who has how many cats?\tada"])]


def test_lines_that_cannot_be_answered_are_one_line(cached: Path) -> None:
    checkpoint = cached / "run" / "checkpoint.ckpt"
    predictor = predictor_of(checkpoint, LineOptions())
    empty = {"answer": None, "start": None, "end": None, "probability": None}
    assert [json.loads(line) for line in predictor.write([b"\n"])] == [empty]
    [nothing] = [json.loads(line) for line in predictor.write([b"who?\t \n"])]
    assert {name: nothing[name] for name in ("start", "end")} == {"start": None, "end": None} or nothing[
        "answer"
    ].strip()
    for line, message in (
        (f"{'who ' * 12}?\t{'so it was ' * 9}\n", "line 1: the question: has 49 symbols, which leave 8 of 60 tokens"),
        ("who?\n", "line 1: has another form; give two texts with a tab between them"),
    ):
        with pytest.raises(ValueError, match=message):
            [*predictor_of(checkpoint, LineOptions()).write([line.encode()])]


def test_the_checkpoint_alone_suffices(cached: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint.ckpt"
    copy.write_bytes((cached / "run" / "checkpoint.ckpt").read_bytes())
    moved = cached / "questions.jsonl"
    moved.rename(cached / "away.jsonl")
    try:
        [line] = predictor_of(copy, LineOptions()).write([b"cats of ada?\tada has 3 cats.\n"])
    finally:
        (cached / "away.jsonl").rename(moved)
    assert json.loads(line).keys() == {"answer", "start", "end", "probability"}
