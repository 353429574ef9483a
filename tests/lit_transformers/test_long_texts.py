"""Long texts: which part is read, and pieces that a network reads one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from datamodules import LabelledDataConfig
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Bytes
from datamodules.labelled.labelled_records import LabelledRecordsConfig
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.models import EncoderConfig
from lit_transformers.runs import RunConfig, describe
from lit_transformers.tasks import ClassificationConfig
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.config import TrainingConfig

LENGTH, BOUNDARY, END = 12, 256, 257


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts of 3 to 57 bytes."""
    folder = tmp_path_factory.mktemp("texts")
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [f"{(letters[n % 26 :] + letters * 2)[: 3 + n * 7 % 55]}\t{'yes' if n % 3 else 'no'}" for n in range(40)]
    for name, part in (("train", rows[:28]), ("validation", rows[28:])):
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(part) + "\n")
    return folder


def config_of(path: Path, task: dict[str, Any] | None = None, **source: Any) -> RunConfig:
    records = LabelledRecordsConfig(path=str(path), labels=("no", "yes"), length=LENGTH, **source)
    return RunConfig(
        model=EncoderConfig(dim=16, heads=2, depth=2, positions=LearnedConfig()),
        task=ClassificationConfig(**(task or {})),
        data=LabelledDataConfig(source=records, batch_size=4, window=2),
        training=TrainingConfig(steps=2, device="cpu"),
    )


def task_of(config: RunConfig) -> PooledTask:
    torch.manual_seed(0)
    task = config.build_task(config.data.build())
    assert isinstance(task, PooledTask)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return task.eval()


def test_of_a_long_text_the_head_the_tail_or_a_share_of_both_is_read(texts: Path) -> None:
    for keep, share, expected in (
        ("head", 0.25, lambda text: text[:10]),
        ("tail", 0.25, lambda text: text[-10:]),
        ("head_tail", 0.3, lambda text: text[:3] + text[-7:]),
    ):
        examples = config_of(texts, keep=keep, head_share=share).data.source.build()
        documents = examples.corpus.documents("train")
        for ordinal in range(examples.count("train")):
            [encoded] = examples.texts_of(documents[ordinal].text)
            text = [*encoded]
            read = expected(text) if len(text) > 10 else text
            assert examples.example("train", ordinal).symbols.tolist() == [*read, END]
    paper = config_of(texts, keep="head_tail").override({"data.source.length": 512}).data.source
    assert paper.rows_of(Bytes()).head == 128, "128 and 382 of 510, as in arXiv:1905.05583, section 5.3.1"
    fingerprints = {
        config_of(texts, **changes).data.source.build().fingerprint
        for changes in ({}, {"keep": "tail"}, {"keep": "head_tail"}, {"keep": "head_tail", "head_share": 0.5})
    }
    assert len(fingerprints) == 4


def test_pieces_are_full_but_for_the_last_and_each_is_a_row_by_itself() -> None:
    rows, text = TextRows(Bytes(), 30, (END,), piece=10), np.arange(100, 150)
    pieces = np.split(np.append([BOUNDARY], rows.row(text)[0]), 3)
    for number, piece in enumerate(pieces):
        assert piece.tolist() == [BOUNDARY, *text[10 * number : 10 * number + 10], END]
    assert rows.row(text[:10])[0].tolist() == [*text[:10], END]
    assert rows.row(text[:11])[0].tolist() == [*text[:10], END, BOUNDARY, text[10], END]
    assert rows.row(text[:0])[0].tolist() == [END]


def by_hand(task: PooledTask, batch: LabelledBatch, row: int) -> Tensor:
    """The output for one text, each of whose pieces the network reads alone."""
    head, config = task.label_head, task.config
    symbols, vectors = batch.inputs[row][batch.padding_mask[row]], []
    for piece in symbols.split(LENGTH):
        hidden = task.network(piece[None]).hidden[0]
        match config.pooling:
            case "first":
                vectors.append(hidden[0])
            case "max":
                vectors.append(hidden.max(dim=0).values)
            case "attention":
                weights = torch.stack([head.tokens.query @ h for h in hidden]) / 4
                vectors.append(weights.exp() @ hidden / weights.exp().sum())
    stacked = torch.stack(vectors)
    match config.piece_pooling:
        case "mean":
            text = stacked.sum(dim=0) / len(stacked)
        case "max":
            text = stacked.max(dim=0).values
        case "attention":
            weights = torch.stack([head.pieces.query @ v for v in stacked]) / 4
            text = weights.exp() @ stacked / weights.exp().sum()
    return head.map[1](text)


@pytest.mark.parametrize(
    ("pooling", "piece_pooling"),
    [("first", "mean"), ("max", "max"), ("attention", "attention"), ("first", "attention")],
)
def test_a_text_of_several_pieces_is_what_its_pieces_alone_give_in_any_company(
    texts: Path, pooling: str, piece_pooling: str
) -> None:
    config = config_of(texts, {"pooling": pooling, "piece_pooling": piece_pooling}, pieces=4)
    task, data = task_of(config).double(), config.data.build()
    assert data.description.length == LENGTH and data.description.longest_row == 4 * LENGTH
    batches = list(data.val_dataloader())
    assert {-(-int(batch.padding_mask.sum(1).max()) // LENGTH) for batch in batches} == {3, 4}
    with torch.no_grad():
        for batch in batches:
            outputs = task.evaluation_output(batch)
            for row in range(len(outputs)):
                torch.testing.assert_close(outputs[row], by_hand(task, batch, row))
            longer = torch.nn.functional.pad(batch.inputs, (0, LENGTH + 3), value=7)
            mask = torch.nn.functional.pad(batch.padding_mask, (0, LENGTH + 3), value=False)
            padded = task.evaluation_output(batch._replace(inputs=longer, padding_mask=mask, padded=True))
            torch.testing.assert_close(padded, outputs)
    for p in task.parameters():
        p.grad = None
    task.train().training_step(batches[0], 0)["loss"].backward()
    assert not [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None]


def test_numbers_of_texts_in_pieces_do_not_depend_on_batches_or_padding(texts: Path) -> None:
    config = config_of(texts, pieces=4)
    task = task_of(config).double()
    results = []
    for changes in ({}, {"data.evaluation.batch_size": 3}, {"data.padding": "fixed"}, {"data.window": 1}):
        task.metric.reset()
        with torch.no_grad():
            for index, batch in enumerate(config.override(changes).data.build().val_dataloader()):
                task.validation_step(batch, index)
        results.append(task.metric.compute())
    for result in results[1:]:
        assert result == pytest.approx(results[0], rel=1e-9)
    assert len(task.metric.per_document()) == config.data.build().examples.count("validation")


def test_the_cost_of_texts_in_pieces_is_what_is_counted(texts: Path) -> None:
    task = {"pooling": "attention", "piece_pooling": "attention"}
    config = config_of(texts, task, pieces=4)
    network = task_of(config)
    batch = config.task.random_batch(config.data.build().description)
    assert batch.inputs.shape == (2, 4 * LENGTH)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network.evaluation_output(batch)
    cost = describe(config)
    assert cost.flops_per_token == pytest.approx(counter.get_total_flops() / 2 / (4 * LENGTH), rel=0.02)
    assert config.data.tokens_per_step == 4 * 4 * LENGTH


@pytest.mark.slow
def test_every_field_of_long_texts_changes_something(texts: Path) -> None:
    pieces = config_of(texts, pieces=4)
    assert not changes_nothing(pieces.override({"task.piece_pooling": "max"}), pieces)
    assert not changes_nothing(pieces.override({"task.piece_pooling": "attention"}), pieces)


def test_pooling_of_pieces_needs_pieces(texts: Path) -> None:
    config = config_of(texts, {"piece_pooling": "max"})
    with pytest.raises(
        ConfigError, match=r"each text of these data is one piece; drop it, or set data\.source\.pieces"
    ):
        config.build_task(config.data.build())
