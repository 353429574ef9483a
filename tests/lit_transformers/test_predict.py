"""New texts through a trained classifier or regressor: a JSON line for each, and messages about the lines."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import DataError
from datamodules.labelled.stored_texts import StoredText
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.passages import passage_finder_of, passages_in
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predictor import NOT_CALIBRATED, LineFormat, Predictor
from lit_transformers.models.encoder import Encoder
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents
from lit_transformers.tasks import Task

TEXTS = ["good film", "dull film . dull", "fine plot and a good film and a fine plot", "bad plot"]
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "initial_std": 0.5}


def saved(config: RunConfig, folder: Path) -> tuple[Path, Task]:
    """The checkpoint of a run that has not been trained, whose weights are large enough to tell texts apart."""
    torch.manual_seed(0)
    data = config.build_data()
    task = config.build_task(data).eval()
    checkpoint = {"lit_transformers": contents(config, data, "its own"), "state_dict": task.state_dict()}
    torch.save(checkpoint, folder / "checkpoint.ckpt")
    return folder / "checkpoint.ckpt", task


def over_texts(folder: Path, task: str, **source: Any) -> RunConfig:
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = [(f"{TEXTS[number % 4]} {number}", ("neg", "pos", "so so")[number % 3]) for number in range(60)]
        csv.writer(file).writerows([("text", "label"), *rows])
    labelled = {"kind": "labelled_texts", "path": str(folder / "texts.csv"), "labels": ["so so", "pos", "neg"]}
    tokenizer = {"kind": "words", "size": 10}
    data = {"kind": "labelled", "source": labelled | {"splits": "hash", "tokenizer": tokenizer, "length": 10} | source}
    return RunConfig.from_dict({"model": ENCODER, "task": task, "data": data, "training": {"steps": 1}})


def predicted(predictor: Predictor, *lines: str) -> list[Any]:
    return [json.loads(line) for line in predictor.write(f"{line}\n".encode() for line in lines)]


def close(prediction: dict[str, Any]) -> dict[str, Any]:
    """A value that equals a prediction except for rounding, which depends on the other lines of a batch."""
    return prediction | {"probabilities": pytest.approx(prediction["probabilities"], abs=1e-5)}


def of(checkpoint: Path, form: LineFormat = "text", **options: Any) -> Predictor:
    return predictor_of(checkpoint, LineOptions(**options), form)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_line_is_predicted_as_an_example_of_the_data_is(task: str, tmp_path: Path) -> None:
    """In any batch and window, after the files of the run are gone."""
    config = over_texts(tmp_path, task)
    checkpoint, network = saved(config, tmp_path)
    data, texts = config.build_data(), list[str]()
    expected: dict[int, Any] = {}
    for batch in data.val_dataloader():
        with torch.no_grad():
            expected |= {prediction.document: prediction[1] for prediction in network.predict_step(batch, 0)}
    documents = data.examples.corpus.documents("validation")
    texts = [StoredText.of(documents[number].text).texts[0] for number in sorted(expected)]
    (tmp_path / "texts.csv").unlink()
    for options in ({}, {"window": 3}, {"batch_tokens": 1}):
        results = predicted(of(checkpoint, **options), *texts)
        for number, result in zip(sorted(expected), results, strict=True):
            if task == "regression":
                assert result == {"value": pytest.approx(expected[number], abs=1e-5)}
            else:
                assert [*result["probabilities"]] == ["so so", "pos", "neg"]
                assert [*result["probabilities"].values()] == pytest.approx(list(expected[number]), abs=1e-5)
                assert result["label"] == max(result["probabilities"], key=result["probabilities"].get)


@pytest.mark.parametrize(("mixer", "unpadded"), [("attention", True), ("lsh", False)])
def test_lines_are_read_without_padding_where_the_network_can(mixer: str, unpadded: bool, tmp_path: Path) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification").override({"model.mixer": mixer}), tmp_path)
    predictor = of(checkpoint)
    [network] = (module for module in predictor.task.modules() if isinstance(module, Encoder))  # type: ignore[attr-defined]
    assert network.unpadded is (unpadded and not torch.cuda.is_available())
    assert len(predicted(predictor, *TEXTS)) == 4


def test_what_became_of_lines_is_told_and_that_probabilities_are_not_calibrated(tmp_path: Path) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    predictor = of(checkpoint)
    results = predicted(predictor, "good film", "", "splendid film", " ".join(["good"] * 9), "  ")
    empty = {"label": None, "probabilities": None}
    assert [result == empty for result in results] == [False, True, False, False, True]
    assert list(predictor.messages()) == [
        "lines: 5",
        "empty, and left so: 2",
        "cut to 8 symbols, the longest of training: 1 (line 4)",
        "unknown symbols: 1 of 13",
        NOT_CALIBRATED,
    ]
    assert results[3] == close(predicted(predictor, " ".join(["good"] * 8))[0])
    refusing = of(checkpoint, overlong="refuse")
    assert predicted(refusing, "good film", " ".join(["good"] * 9)) == [close(results[0]), empty]
    numbers = of(saved(over_texts(tmp_path, "regression"), tmp_path)[0])
    assert predicted(numbers, "") == [{"value": None}] and NOT_CALIBRATED not in list(numbers.messages())


def test_lines_of_json_are_texts_that_may_hold_line_ends(tmp_path: Path) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    [plain] = predicted(of(checkpoint), "good film")
    lines = [json.dumps(line) for line in ("good film", ["good film"], {"text": "good film", "id": 3})]
    assert predicted(of(checkpoint, "json"), *lines) == [close(plain)] * 3
    for line, message in (
        ("good film", r'line 1: is no JSON; give \{"text": "..."\}, or --lines text'),
        ("[1]", r'line 1: has another form; give \{"text": "..."\}'),
        ('"\\ud800"', "line 1: holds a character that UTF-8 cannot write"),
        ('{"review": "good"}', r"line 1: has no field 'text'; give \{"),
    ):
        with pytest.raises(ValueError, match=message):
            predicted(of(checkpoint, "json"), line)


def test_two_texts_are_read_as_two_segments_of_training(tmp_path: Path) -> None:
    topics = {"kind": "topics", "documents": 40, "validation": 0.3}
    data = {"kind": "rows", "source": topics, "tokenizer": "words", "length": 24, "packing": "segment_pair"}
    data |= {"relation": "sentence_structure"}
    model = ENCODER | {"segments": 2}
    config = RunConfig.from_dict({"model": model, "task": "masked_lm", "data": data, "training": {"steps": 1}})
    checkpoint, task = saved(config, tmp_path)
    batch = next(iter(config.build_data().val_dataloader()))
    hidden = batch.targets != -100
    whole = batch._replace(inputs=torch.where(hidden, batch.targets, batch.inputs))
    with torch.no_grad():
        expected = task.heads["relation"].logits(task.evaluation_reading(whole)).softmax(dim=-1).tolist()  # type: ignore[operator]
    tokenizer = config.build_data().tokenizer  # type: ignore[attr-defined]
    lines = []
    for row, segments, real in zip(whole.inputs, batch.segments, batch.padding_mask, strict=True):
        texts = (tokenizer.decode(row[real & (segments == part)].tolist()[:-1]) for part in (0, 1))
        lines.append("\t".join(text.strip() for text in texts))
    results = predicted(of(checkpoint), *lines)
    for result, probabilities in zip(results, expected, strict=True):
        assert [*result["probabilities"]] == ["next", "previous", "other_document"]
        assert [*result["probabilities"].values()] == pytest.approx(probabilities, abs=1e-5)
    first, second = lines[0].split("\t")
    assert predicted(of(checkpoint, "json"), json.dumps({"first": first, "second": second})) == [close(results[0])]
    with pytest.raises(ValueError, match=r"line 1: has another form; give two texts with a tab between them"):
        predicted(of(checkpoint), first)


def test_what_predicts_nothing_of_texts_is_refused_in_a_line(tmp_path: Path) -> None:
    language = {"model": ENCODER | {"kind": "language_model"}, "data": {"kind": "language", "source": "lags"}}
    lists = {"model": ENCODER, "task": "classification", "data": {"kind": "labelled", "source": "listops"}}
    for plain, message in (
        (language, "its task is causal_lm; generate, translate and summarize write"),
        (lists, "was trained on listops, which are not texts"),
    ):
        checkpoint, _ = saved(RunConfig.from_dict(plain), tmp_path)
        with pytest.raises(ConfigError, match=message):
            of(checkpoint)


def test_the_command_writes_json_to_one_stream_and_counts_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    given = b"good film\n\n" + b"dull " * 9
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["predict", str(checkpoint), "--overlong", "refuse"]) == 1
    output = capfdbinary.readouterr()
    lines = output.out.decode().splitlines()
    assert len(lines) == 3 and json.loads(lines[0])["label"] and not json.loads(lines[1])["label"]
    assert output.err.decode().splitlines()[-1] == NOT_CALIBRATED


def over_choices(folder: Path) -> RunConfig:
    (folder / "choices").mkdir()
    for split in ("train", "validation"):
        rows = [
            {"question": f"{TEXTS[n % 4]} or", "choices": [*TEXTS[: 2 + n % 3]], "answer": n % 2} for n in range(12)
        ]
        (folder / "choices" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"kind": "choices", "path": str(folder / "choices"), "length": 16, "tokenizer": {"kind": "words"}}
    data, model = {"kind": "labelled", "source": source, "batch_size": 5}, ENCODER | {"segments": 2}
    plain = {"model": model, "task": "multiple_choice", "data": data, "training": {"steps": 1}}
    return RunConfig.from_dict(plain)


def test_the_choices_of_a_line_are_predicted_as_those_of_an_example_are(tmp_path: Path) -> None:
    checkpoint, task = saved(config := over_choices(tmp_path), tmp_path)
    expected: dict[int, Any] = {}
    for batch in config.build_data().val_dataloader():
        with torch.no_grad():
            expected |= {prediction.document: prediction.probabilities for prediction in task.predict_step(batch, 0)}
    rows = [json.loads(line) for line in (tmp_path / "choices" / "validation.jsonl").read_text().splitlines()]
    for form in ("json", "text"):
        lines = [json.dumps(row) if form == "json" else "\t".join([row["question"], *row["choices"]]) for row in rows]
        results = predicted(of(checkpoint, form), *lines, "")  # type: ignore[arg-type]
        assert results.pop() == {"choice": None, "probabilities": None}
        for number, result in enumerate(results):
            assert result["probabilities"] == pytest.approx(list(expected[number]), abs=1e-5)
            assert result["choice"] == expected[number].index(max(expected[number]))
    cut = of(checkpoint)
    predicted(cut, "\t".join([TEXTS[2], "good film", " ".join(TEXTS)]))
    assert "cut to 13 symbols, the longest of training: 1 (line 1)" in list(cut.messages())
    with pytest.raises(ValueError, match="line 1: has another form; give a question and its choices with tabs"):
        predicted(of(checkpoint), "good film\tdull film")


def over_pairs(folder: Path) -> RunConfig:
    (folder / "pairs").mkdir()
    for split in ("train", "validation"):
        rows = [{"source": f"{text.split()[0]} film", "target": text} for text in TEXTS]
        (folder / "pairs" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source, longest = {"kind": "records", "path": str(folder / "pairs")}, {"longest_question": 8, "longest_passage": 10}
    data = {"kind": "retrieval", "source": source, "tokenizer": {"kind": "words"}, "batch_size": 4, **longest}
    task = {"kind": "retrieval", "pooling": "mean", "towers": "separate"}
    return RunConfig.from_dict({"model": ENCODER, "task": task, "data": data, "training": {"steps": 1}})


def test_passages_of_a_file_are_ordered_as_an_evaluation_orders_them(tmp_path: Path) -> None:
    checkpoint, task = saved(config := over_pairs(tmp_path), tmp_path)
    file = tmp_path / "passages.txt"
    file.write_text("\n".join([TEXTS[0], "", *TEXTS[1:], TEXTS[0], ""]))
    questions, passages, data = {}, {}, config.build_data()
    for batch in data.val_dataloader():
        for vector in task.predict_step(batch, 0):
            of_texts = passages if vector.question is None else questions
            of_texts[vector.passage] = torch.tensor(vector.vector)
    finder = passage_finder_of(checkpoint, [*passages_in(file)], LineOptions(), top=4)
    results = predicted(finder, *(f"{text.split()[0]} film" for text in TEXTS), "")  # type: ignore[arg-type]
    assert results.pop() == {"passages": None}
    numbers = dict(zip(data.passages("validation"), TEXTS, strict=True))  # type: ignore[attr-defined]
    for result, number in zip(results, numbers, strict=True):
        scores = {text: float(questions[number] @ passages[other]) for other, text in numbers.items()}
        best = sorted([*TEXTS, TEXTS[0]], key=lambda text: -scores[text])[:4]
        assert [entry["passage"] for entry in result["passages"]] == best
        assert [entry["score"] for entry in result["passages"]] == pytest.approx([scores[t] for t in best], abs=1e-5)
        lines = [entry["line"] for entry in result["passages"] if entry["passage"] == TEXTS[0]]
        assert lines in ([1, 6], [1], []), "equal passages stand in the order of the file"
    others = passage_finder_of(checkpoint, [*passages_in(file)][1:], LineOptions(), top=1)
    (best,) = predicted(others, f"{TEXTS[0].split()[0]} film")
    assert best["passages"][0]["passage"] == results[0]["passages"][0]["passage"], "vectors are those of these texts"
    with pytest.raises(
        ConfigError, match=r"^--passages: a run of retrieval searches the passages of a file; name the file"
    ):
        of(checkpoint)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty.txt: holds no passage; write one in every line"):
        [*passages_in(tmp_path / "empty.txt")]
    (tmp_path / "other").mkdir()
    other, _ = saved(over_texts(tmp_path, "classification"), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"^--passages: a run of the task classification searches no passages"):
        passage_finder_of(other, [*passages_in(file)], LineOptions())
