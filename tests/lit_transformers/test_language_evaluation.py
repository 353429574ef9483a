"""The numbers of an evaluation of a language model depend on the text, not on symbols, batches or processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import LanguageDataConfig
from datamodules.text.language import LanguageData
from lit_transformers.batch import IGNORED
from lit_transformers.heads.next_symbol import counted_targets
from lit_transformers.runs import RunConfig
from lit_transformers.tasks.causal_lm import CausalLM

TEXTS = ["Grün ist die Heide,\n", "naïve café – 10 €\n", "日本語と English\n", "plain words, plain words\n", "ß\n"]
"""Of one, two and three bytes to a character."""


def evaluate_task(config: RunConfig) -> tuple[CausalLM, LanguageData]:
    """An untrained task that has measured its validation split."""
    torch.manual_seed(0)
    assert isinstance(config.data, LanguageDataConfig)
    data = config.data.build()
    task = config.build_task(data).eval()
    assert isinstance(task, CausalLM)
    task.begin_evaluation()
    with torch.no_grad():
        for index, batch in enumerate(data.val_dataloader()):
            task.validation_step(batch, index)
    return task, data


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    for index in range(20):
        (tmp_path / f"{index}.txt").write_text(TEXTS[index % 5] * (1 + index // 5), encoding="utf-8")
    return {"source": {"kind": "files", "path": str(tmp_path), "validation": 0.4}, "segment_length": 128}


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", {"kind": "bpe", "size": 300}], ids=str)
def test_bits_per_byte_are_of_the_bytes_of_the_text(
    small_run: RunConfig, corpus: dict[str, Any], tokenizer: str | dict[str, Any]
) -> None:
    task, data = evaluate_task(small_run.override({"data": {"kind": "language", "tokenizer": tokenizer, **corpus}}))
    nats, size, symbol_count = 0.0, 0, 0
    for document in data.documents("validation"):
        symbols = torch.tensor([data.vocabulary.boundary, *data.tokenizer.encode(document.text).tolist()])
        with torch.no_grad():
            log_probs = task.network.tokens.log_probabilities(task.network(symbols[None, :-1]).hidden)[0].double()
        nats -= float(log_probs.gather(1, symbols[1:, None]).sum())
        size, symbol_count = size + len(document.text), symbol_count + len(symbols) - 1
    assert task.metric.compute()["bpb"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert (symbol_count == size) == (tokenizer == "bytes"), "bits per symbol would be another number"


def test_words_of_which_no_bytes_are_known_have_no_bits_per_byte(small_run: RunConfig, corpus: dict[str, Any]) -> None:
    task, _ = evaluate_task(small_run.override({"data": {"kind": "language", "tokenizer": "words", **corpus}}))
    assert set(task.metric.compute()) == {"nats", "perplexity"}


@pytest.mark.parametrize(("rows", "workers"), [(3, 0), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_a_document_costs_the_same_whatever_shares_its_batch_and_whoever_reads_it(
    small_run: RunConfig, rows: int, workers: int
) -> None:
    """With memory, which a document that starts in a row finds empty. Nine rows hold nine documents: none follows."""
    separate_config = small_run.override(
        {"data.evaluation.documents": 9, "data.batch_size": 9, "model.initial_std": 0.5}
    )
    shared_config = separate_config.override({"data.batch_size": rows, "data.workers": workers})
    (separate_task, _), (shared_task, _) = evaluate_task(separate_config), evaluate_task(shared_config)
    expected, losses = separate_task.metric.per_document(), shared_task.metric.per_document()
    assert [loss.tokens for loss in losses] == [loss.tokens for loss in expected] and len(losses) == 9
    assert [loss.nats for loss in losses] == pytest.approx([loss.nats for loss in expected], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("full", [[1, 2, 3, IGNORED], [4, 5, 6, 7]]),
        ("half", [[IGNORED, IGNORED, 3, IGNORED], [IGNORED, IGNORED, 6, 7]]),
        ("last", [[IGNORED, IGNORED, 3, IGNORED], [IGNORED, IGNORED, IGNORED, 7]]),
    ],
)
def test_a_loss_of_training_counts_its_part_of_a_segment(
    small_run: RunConfig, loss: str, expected: list[list[int]]
) -> None:
    config = small_run.override({"task.loss": loss, "task.intermediate": True, "task.future": [1.0]})
    task = config.build_task(config.build_data())
    targets = torch.tensor([[1, 2, 3, IGNORED], [4, 5, 6, 7]])
    for head in task.heads.values():
        assert counted_targets(targets, head.counted).tolist() == expected  # type: ignore[arg-type]
    batch = task.config.random_batch(task.data)._replace(targets=targets)
    assert task.heads["symbols"].targets(batch) == (torch.tensor(expected) != IGNORED).sum()  # type: ignore[operator]
