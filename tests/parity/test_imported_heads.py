"""The heads of folders of Hugging Face that were fine-tuned there give here the numbers that they give in
transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, close, randomise
from safetensors.torch import load_file
from torch import Tensor

from datamodules import DataError
from lit_transformers.batch import (
    ChoiceLabels,
    ClassLabels,
    ClassSetLabels,
    LabelledBatch,
    LabelledDescription,
    Labels,
    NumberLabels,
    SpanLabels,
    Vocabulary,
    WordTagLabels,
)
from lit_transformers.config import ConfigError
from lit_transformers.exchange.transfer import export_weights, import_weights, imported
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import StartingWeights, start_from
from lit_transformers.tasks import TaskConfig
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.template.fine_tuning import write_fine_tuning
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "dull", "good", "odd", *"bcdefgh"]
NAMES = ["odd", "dull", "good"]
SIZES: dict[str, Any] = {
    "vocab_size": len(PIECES),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    **EAGER,
}
LENGTH = 9
CLASSES = ClassLabels(count=3)
CASES: dict[str, tuple[str, dict[str, Any], str, Labels]] = {
    "classes": ("SequenceClassification", {}, "classification", CLASSES),
    "several": (
        "SequenceClassification",
        {"problem_type": "multi_label_classification"},
        "multi_label",
        ClassSetLabels(count=3),
    ),
    "number": ("SequenceClassification", {"num_labels": 1}, "regression", NumberLabels()),
    "tags": ("TokenClassification", {}, "tagging", WordTagLabels(names=tuple(NAMES))),
    "answers": ("QuestionAnswering", {"num_labels": 2}, "question_answering", SpanLabels()),
    "choices": ("MultipleChoice", {}, "multiple_choice", ChoiceLabels(count=2)),
}


def saved(folder: Path, kind: str, stem: str = "Bert", **fields: Any) -> Any:
    """A network of transformers with random weights and a head, saved with its tokenizer."""
    name, own, *_ = CASES[kind]
    named = {"id2label": dict(enumerate(NAMES)), "label2id": {name: n for n, name in enumerate(NAMES)}}
    values = {**SIZES, **(own if "num_labels" in own else {**named, **own}), **fields}
    model = getattr(transformers, f"{stem}For{name}")(getattr(transformers, f"{stem}Config")(**values))
    randomise(model)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return model.double().eval()


def changed(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def task_of(plain: Any, weights: StartingWeights, labels: Labels) -> LabelledTask:
    vocabulary = Vocabulary(size=len(PIECES), boundary=2, unit="piece", byte_lengths=None)
    segments = 2 if isinstance(labels, SpanLabels | ChoiceLabels) else 1
    data = LabelledDescription(vocabulary=vocabulary, length=LENGTH, labels=labels, segments=segments)
    task = TaskConfig.from_dict(plain).build(weights.model, data, TrainingConfig())
    assert isinstance(task, LabelledTask)
    return task


def started(folder: Path, labels: Labels) -> LabelledTask:
    """The task that a folder states, with its weights."""
    weights, _ = imported(folder)
    task = task_of(weights.task, weights, labels)
    lines = start_from(task, {"network": weights, "heads": weights})
    assert not any(line.startswith("heads.") and "starts anew" in line for line in lines)
    return task.double().eval()


def rows(*shape: int) -> LabelledBatch:
    lengths = torch.randint(4, LENGTH, shape, generator=torch.Generator().manual_seed(0))
    real = torch.arange(LENGTH) < lengths[..., None]
    symbols = torch.randint(2, len(PIECES), real.shape, generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(LENGTH) > 2).long() * real
    first = torch.zeros(shape[0])
    return LabelledBatch(symbols * real, real, first, None, torch.arange(shape[0]), None, segments=segments)


def outputs(task: LabelledTask, batch: LabelledBatch) -> Tensor:
    """The outputs of the head for the vectors of tokens, or for whole rows."""
    [head] = task.heads.values()
    if task.config.kind in ("tagging", "question_answering"):
        return head.map(task.read(task.network, batch).hidden)  # type: ignore[no-any-return, union-attr, operator]
    return task.evaluation_output(batch)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("kind", CASES)
def test_a_head_gives_the_logits_that_it_gives_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs, labels = saved(tmp_path / "bert", kind), CASES[kind][3]
    ours = started(tmp_path / "bert", labels)
    assert ours.config.kind == CASES[kind][2]
    batch = rows(3, 2) if kind == "choices" else rows(3)
    if not isinstance(labels, SpanLabels | ChoiceLabels):
        batch = batch._replace(segments=None)
    with torch.no_grad():
        output = theirs(batch.inputs, batch.padding_mask.long(), batch.segments)
        found = outputs(ours, batch)
    expected = output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], dim=2)
    if kind == "choices":  # the bias of transformers is added to the scores of all choices
        found = found + theirs.classifier.bias
    if kind in ("tags", "answers"):
        found, expected = found[batch.padding_mask], expected[batch.padding_mask]
    close(found, expected.double(), 1e-6)


@pytest.mark.parametrize("stem", ["Albert", "Electra", "Roberta", "DistilBert"])
@pytest.mark.parametrize("kind", ["classes", "choices"])
def test_heads_of_other_encoders_return_to_transformers_as_they_came(stem: str, kind: str, tmp_path: Path) -> None:
    sizes = {"Albert": {"embedding_size": 8}, "Electra": {"embedding_size": 8}, "Roberta": {"type_vocab_size": 1}}
    own = {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}
    saved(tmp_path / "theirs", kind, stem, **(own if stem == "DistilBert" else sizes[stem]))
    import_weights(str(tmp_path / "theirs"), tmp_path / "ours")
    exported = export_weights(tmp_path / "ours", tmp_path / "back")
    assert exported.architecture.endswith(f"({stem}For{CASES[kind][0]})")
    assert not any("architectures" in note for note in exported.notes)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert before.keys() == after.keys()
    lost = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    unread = {"roberta.embeddings.position_embeddings.weight"} if stem == "Roberta" else set()
    assert lost == (unread | ({"classifier.bias"} if kind == "choices" else set()))
    if kind == "classes":
        assert [*transformers.AutoConfig.from_pretrained(tmp_path / "back").id2label.values()] == NAMES


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("classes", {"problem_type": "regression"}, "it has 3 outputs, and regression has 1 here"),
        ("number", {"problem_type": "single_label_classification"}, "it has one output, and classification has two"),
        ("classes", {"id2label": {0: "a", 1: "b", 2: "a"}}, "gives two outputs the name 'a'"),
        ("tags", {"id2label": {0: "a", 1: "b"}}, "it has 3 outputs, and config.json names 2"),
        ("answers", {"num_labels": 3}, "it has 3 outputs, and question_answering has 2 here"),
    ],
)
def test_a_head_that_nothing_here_computes_is_refused_with_the_reason_and_its_network_is_not(
    kind: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    saved(tmp_path / "bert", kind, **(fields if kind == "answers" else {}))
    changed(tmp_path / "bert", **fields)
    weights, notes = imported(tmp_path / "bert")
    assert any(note.startswith("head: omitted, for BertFor") and reason in note for note in notes)
    task = task_of("classification", weights, CLASSES)
    start_from(task, {"network": weights})
    with pytest.raises(ConfigError, match=rf"start.heads: .*{reason}.*; name only start.network, for a new head"):
        start_from(task, {"network": weights, "heads": weights})


def test_a_run_reads_the_labels_of_a_fine_tuned_head_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data with fewer classes, in another order, and one line for a label that the head does not know."""
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    theirs = saved(tmp_path / "bert", "classes")
    texts = ["a good film", "a dull film", "a film b c", "d"]
    with (tmp_path / "films.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"{texts[n % 4]}", NAMES[1 + n % 2]) for n in range(40))])
    weights, _ = imported(tmp_path / "bert")
    source = {
        "kind": "labelled_texts",
        "path": str(tmp_path / "films.csv"),
        "splits": "hash",
        "labels": ["good", "dull"],
    }
    source |= {"tokenizer": {"kind": "pretrained", "path": str(tmp_path / "bert" / "vocab.txt")}, "length": 16}
    plain = {
        "model": weights.model.to_dict(),
        "task": weights.task,
        "data": {"kind": "labelled", "source": source | {"validation": 0.4}},
        "training": {"steps": 0, "device": "cpu"},
        "start": {"network": {"kind": "import", "path": str(tmp_path / "bert")}, "heads": "network"},
    }
    record = fit(RunConfig.from_dict(plain), tmp_path / "run")
    assert record["outcome"] == "finished", record["reason"]
    lines = predictor_of(tmp_path / "run" / "checkpoint.ckpt", LineOptions()).write(
        f"{text}\n".encode() for text in texts
    )
    tokens = transformers.BertTokenizerFast(str(tmp_path / "bert" / "vocab.txt"))
    for text, line in zip(texts, lines, strict=True):
        with torch.no_grad():
            expected = theirs(**tokens(text, return_tensors="pt")).logits[0].softmax(0)
        assert json.loads(line)["probabilities"] == pytest.approx(
            dict(zip(NAMES, expected.tolist(), strict=True)), abs=1e-5
        )
    with pytest.raises(DataError, match="the label 'bad' was never trained; the network knows odd, dull, good"):
        fit(RunConfig.from_dict(plain).override({"data.source.labels": ["good", "dull", "bad"]}), tmp_path / "other")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("classes", "head: starts as the head of the weights, classification of odd, dull, good"),
        ("number", "head: starts anew, for the head of the weights is for regression"),
    ],
)
def test_a_run_on_own_data_starts_from_a_fine_tuned_head_of_the_same_objective(
    kind: str, line: str, tmp_path: Path
) -> None:
    saved(tmp_path / "bert", kind)
    rows = [("text", "label"), *((f"a film {n}", NAMES[1 + n % 2]) for n in range(40))]
    with (tmp_path / "films.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    lines = write_fine_tuning("classify", str(tmp_path / "films.csv"), tmp_path / "run", str(tmp_path / "bert"))
    assert line in lines
    config = RunConfig.from_yaml(tmp_path / "run" / "run.yaml")
    assert (config.start.heads is not None) == (kind == "classes")
    assert (
        fit(config.override({"training.steps": 0, "training.schedule.warmup": 0}), tmp_path / "trained")["outcome"]
        == "finished"
    )
    with (tmp_path / "films.csv").open("a", newline="") as file:
        csv.writer(file).writerow(("b c", "bad"))
    other = write_fine_tuning("classify", str(tmp_path / "films.csv"), tmp_path / "other", str(tmp_path / "bert"))
    assert any(note.startswith("head: starts anew") for note in other)
