"""The head of a fine-tuned network gives in transformers the numbers that it gives here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, close, randomise

from datamodules import ListOpsConfig
from lit_transformers.batch import (
    ChoiceLabels,
    ClassLabels,
    LabelledBatch,
    LabelledDescription,
    NumberLabels,
    SpanLabels,
    Vocabulary,
    WordTagLabels,
)
from lit_transformers.exchange.transfer import export_weights, imported
from lit_transformers.runs import RunConfig
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.tasks.task import DESCRIPTION
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH, LABELS = 37, 13, ["no", "perhaps", "yes"]
SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    **EAGER,
}
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "bert": ("tanh", lambda: transformers.BertModel(transformers.BertConfig(**SIZES))),
    "albert": ("tanh", lambda: transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=8))),
    "electra": ("gelu", lambda: transformers.ElectraModel(transformers.ElectraConfig(**SIZES, embedding_size=8))),
    "roberta": (
        "tanh",
        lambda: transformers.RobertaModel(transformers.RobertaConfig(**SIZES | {"type_vocab_size": 1})),
    ),
    "distilbert": (
        "relu",
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(
                vocab_size=SYMBOLS, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=24, **EAGER
            )
        ),
    ),
}


def fine_tuned(theirs: Any, folder: Path, task: dict[str, Any], labels: Any) -> tuple[Any, Path]:
    """A task with the weights of a network of transformers and a random head, and the checkpoint of its run."""
    randomise(theirs)
    theirs.save_pretrained(folder / "theirs")
    weights, _ = imported(folder / "theirs")
    config = RunConfig(model=weights.model).override({"task": task, "data": "labelled", "data.source": ListOpsConfig()})
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    segments = 2 if isinstance(labels, SpanLabels | ChoiceLabels) else 1
    data = LabelledDescription(vocabulary=vocabulary, length=LENGTH, labels=labels, segments=segments)
    ours = config.task.build(config.model, data, TrainingConfig())
    assert isinstance(ours, LabelledTask)
    known = ours.state_dict()
    ours.load_state_dict({**known, **{name: of for name, of in weights.tensors.items() if name in known}})
    randomise(ours.heads)
    header = {"config": config.to_dict(), "labels": None if segments == 2 else LABELS}
    checkpoint = folder / "checkpoint.ckpt"
    torch.save({"lit_transformers": header, DESCRIPTION: data.to_dict(), "state_dict": ours.state_dict()}, checkpoint)
    return ours.double().eval(), checkpoint


def batch() -> LabelledBatch:
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [LENGTH - 2]])
    symbols = torch.randint(2, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    return LabelledBatch(symbols * padding_mask, padding_mask, torch.zeros(3), None, torch.arange(3), None)


def outputs_there(folder: Path, rows: LabelledBatch, kind: str) -> torch.Tensor:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).double().eval()
    symbols = rows.inputs.masked_fill(~rows.padding_mask, int(kind == "roberta"))
    logits = model(input_ids=symbols, attention_mask=rows.padding_mask.long()).logits
    assert isinstance(logits, torch.Tensor)
    return logits


@pytest.mark.parametrize("kind", CASES)
def test_a_classifier_gives_the_logits_and_the_labels_that_it_gives_here(kind: str, tmp_path: Path) -> None:
    hidden, make = CASES[kind]
    ours, checkpoint = fine_tuned(
        make(), tmp_path, {"kind": "classification", "hidden": hidden}, ClassLabels(count=len(LABELS))
    )
    folder = tmp_path / "exported"
    exported = export_weights(checkpoint, folder, kind)
    assert "ForSequenceClassification" in exported.architecture
    rows = batch()
    close(ours.evaluation_output(rows), outputs_there(folder, rows, kind), 1e-6)
    fields = transformers.AutoConfig.from_pretrained(folder)
    assert [fields.id2label[number] for number in range(3)] == LABELS
    assert fields.problem_type == "single_label_classification"


def test_a_regression_is_written_as_one(tmp_path: Path) -> None:
    ours, checkpoint = fine_tuned(
        CASES["bert"][1](), tmp_path, {"kind": "regression", "hidden": "tanh"}, NumberLabels()
    )
    export_weights(checkpoint, tmp_path / "exported")
    rows = batch()
    close(ours.evaluation_output(rows), outputs_there(tmp_path / "exported", rows, "bert"), 1e-6)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "exported").problem_type == "regression"


@pytest.mark.parametrize(
    ("task", "labels", "auto", "fields"),
    [
        (
            "tagging",
            WordTagLabels(names=tuple(LABELS), scheme=None),
            "AutoModelForTokenClassification",
            ["logits"],
        ),
        ("question_answering", SpanLabels(), "AutoModelForQuestionAnswering", ["start_logits", "end_logits"]),
    ],
)
def test_heads_of_tokens_give_the_logits_that_they_give_here(
    task: str, labels: Any, auto: str, fields: list[str], tmp_path: Path
) -> None:
    ours, checkpoint = fine_tuned(CASES["bert"][1](), tmp_path, {"kind": task}, labels)
    export_weights(checkpoint, tmp_path / "exported")
    rows = batch()
    theirs = getattr(transformers, auto).from_pretrained(tmp_path / "exported", dtype=torch.float32).double().eval()
    output = theirs(input_ids=rows.inputs, attention_mask=rows.padding_mask.long())
    expected = torch.cat([getattr(output, field).unflatten(1, (LENGTH, -1)).flatten(2) for field in fields], dim=2)
    [head] = ours.heads.values()
    real = rows.padding_mask
    close(head.map(ours.read(ours.network, rows).hidden)[real], expected[real], 1e-6)
    if task == "tagging":
        assert [theirs.config.id2label[number] for number in range(3)] == LABELS


@pytest.mark.parametrize("kind", ["bert", "albert", "electra", "roberta", "distilbert"])
def test_a_head_that_scores_choices_gives_the_logits_that_it_gives_here(kind: str, tmp_path: Path) -> None:
    hidden, make = CASES[kind]
    ours, checkpoint = fine_tuned(
        make(), tmp_path, {"kind": "multiple_choice", "hidden": hidden}, ChoiceLabels(count=LENGTH)
    )
    exported = export_weights(checkpoint, tmp_path / "exported", kind)
    assert "ForMultipleChoice" in exported.architecture
    one = batch()
    rows = one._replace(**{name: getattr(one, name)[None] for name in ("inputs", "padding_mask")})
    auto = transformers.AutoModelForMultipleChoice
    theirs, loading = auto.from_pretrained(tmp_path / "exported", dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"]
    theirs = theirs.double().eval()
    symbols = rows.inputs.masked_fill(~rows.padding_mask, int(kind == "roberta"))
    logits = theirs(input_ids=symbols, attention_mask=rows.padding_mask.long()).logits
    close(ours.evaluation_output(rows), logits, 1e-6)


@pytest.mark.parametrize(
    ("task", "way_out"),
    [({"hidden": "relu"}, "task.hidden=tanh"), ({"pooling": "mean", "hidden": "tanh"}, "task.pooling=first")],
)
def test_a_head_that_computes_something_else_is_omitted_by_name(
    task: dict[str, Any], way_out: str, tmp_path: Path
) -> None:
    _, checkpoint = fine_tuned(
        CASES["bert"][1](), tmp_path, {"kind": "classification"} | task, ClassLabels(count=len(LABELS))
    )
    exported = export_weights(checkpoint, tmp_path / "exported")
    assert f"head label: omitted, for BertForSequenceClassification computes another head; train with {way_out} " in (
        "\n".join(exported.notes)
    )
