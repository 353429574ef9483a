"""Whether phrases were replaced is predicted from the vectors next to them, and counts in addition to hidden
symbols."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from numerics import bound, placed, same
from test_masked_lm import BERT, DATA, LENGTHS, one, rows
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, RowBatch
from lit_transformers.heads.phrase_detection import Detected, ReplacedPhrases
from lit_transformers.tasks.masked_lm import MaskedLM, MaskedLMConfig
from lit_transformers.training.config import TrainingConfig

WITH_PHRASES = replace(DATA, phrases=True)
PHRASES = [[(5, 7, 1), (8, 9, 0)], [(4, 6, 0)], [], [(2, 4, 1)]]


def rows_with_phrases() -> RowBatch:
    padded = torch.full((4, 2, 3), IGNORED)
    for row, phrases in enumerate(PHRASES):
        padded[row, : len(phrases)] = torch.tensor(phrases).reshape(-1, 3)
    return rows(LENGTHS)._replace(phrases=padded)


def detecting() -> MaskedLM:
    torch.manual_seed(0)
    config = MaskedLMConfig(phrase_weight=0.5)
    return placed(config.build(BERT, WITH_PHRASES, TrainingConfig(device="cpu")).double())


def phrases_of(task: MaskedLM) -> ReplacedPhrases:
    head = task.heads["phrase"]
    assert isinstance(head, ReplacedPhrases)
    return head


def detected(task: MaskedLM, batch: RowBatch) -> Detected:
    head = phrases_of(task)
    return head.detected(task.evaluation_reading(batch).hidden, head.phrases(batch))


@pytest.mark.any_device
def test_the_loss_is_that_of_the_definition_and_is_reported() -> None:
    task, batch = detecting(), rows_with_phrases()
    hidden = task.network.read_row(batch.inputs, batch.padding_mask, batch.inputs == 10, batch.segments).hidden
    detector = phrases_of(task).map
    nats, correct = [], 0
    for row, phrases in enumerate(PHRASES):
        for start, stop, label in phrases:
            logit = F.linear(torch.cat([hidden[row, start - 1], hidden[row, stop]]), detector.weight, detector.bias)
            nats.append(-F.logsigmoid(logit if label else -logit))
            correct += int((logit > 0) == bool(label))
    mean = sum(nats) / len(nats)
    without = batch._replace(phrases=torch.full((4, 0, 3), IGNORED))
    losses = [task.training_step(each, 0)["loss"] for each in (batch, without)]
    same(losses[0] - losses[1], 0.5 * mean.squeeze())
    losses[0].backward()
    assert detector.weight.grad is not None and detector.weight.grad.any()
    task.eval()
    with torch.no_grad():
        task.validation_step(batch, 0)
    results = task.metric.compute()
    assert results["phrase_nats"] == pytest.approx(mean.item(), rel=bound(1e-6)) and results[
        "phrase_accuracy"
    ] == correct / len(nats)
    assert [row.phrases for row in task.metric.per_document()] == [2, 1, 0, 1]


def test_rows_are_told_alike_in_any_company() -> None:
    task, batch = detecting().eval(), rows_with_phrases()
    with torch.no_grad():
        together = detected(task, batch)
        assert batch.phrases is not None
        for row in range(4):
            single = one(batch, row)._replace(phrases=batch.phrases[row : row + 1])
            alone = detected(task, single)
            torch.testing.assert_close(alone.nats, together.nats[together.positions.row == row])


def test_data_without_phrases_leave_what_would_tell_them_alone() -> None:
    """As where noise in evaluation replaces none."""
    task = detecting().eval()
    task.validation_step(rows(LENGTHS), 0)
    assert "phrase_nats" not in task.metric.compute()
    parameters = [MaskedLMConfig().cost(BERT, data).parameters for data in (DATA, WITH_PHRASES)]
    assert parameters[1] - parameters[0] == 2 * BERT.dim + 1
