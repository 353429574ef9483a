"""Rows are compared with the spans that are hidden in them and in others, by the definitions, and over ranks as in one
process."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from forked import Forked
from numerics import bound, placed, same
from test_masked_lm import BERT, DATA
from torch import Tensor

from lit_transformers.batch import IGNORED, RowBatch
from lit_transformers.config import ConfigError
from lit_transformers.heads.contrast import longest_spans
from lit_transformers.tasks.contrastive import Contrastive, ContrastiveConfig
from lit_transformers.tasks.masked_lm import MaskedLMConfig
from lit_transformers.training.config import TrainingConfig

SPANS = [[(2, 3), (5, 8)], [(1, 4)], [(3, 5), (6, 8)], [], [(2, 5)]]
"""The spans that are hidden in each row; that of the last row holds the symbols of that of the second."""
LONGEST = [(5, 8), (1, 4), (3, 5), None, (2, 5)]


def rows(seed: int = 0) -> RowBatch:
    torch.manual_seed(seed)
    padding_mask = torch.arange(12) < torch.tensor([[12], [9], [10], [11], [8]])
    symbols = torch.randint(1, 10, (5, 12)).masked_fill(~padding_mask, 0)
    symbols[4, 2:5] = symbols[1, 1:4]
    targets = torch.full_like(symbols, IGNORED)
    for row, spans in enumerate(SPANS):
        for start, stop in spans:
            targets[row, start:stop] = symbols[row, start:stop]
            symbols[row, start:stop] = 12
    none = torch.full((5,), IGNORED)
    return RowBatch(symbols, targets, padding_mask, torch.zeros_like(symbols), none, torch.arange(5), None)


def task_of(**fields: Any) -> Contrastive:
    torch.manual_seed(0)
    config = ContrastiveConfig(temperature=3.0, **fields)
    return placed(config.build(BERT, DATA, TrainingConfig(device="cpu")).double())


def first_vector(task: Contrastive, symbols: Tensor) -> Tensor:
    whole = torch.ones(1, len(symbols), dtype=torch.bool)
    return task.network.read_row(symbols[None], whole, (torch.arange(len(symbols)) == 0)[None]).hidden[0, 0]


def by_definition(task: Contrastive, batch: RowBatch) -> tuple[list[Tensor], int]:
    """The loss of each row with an n-gram, and how many of them have the highest score with their own."""
    sentences, ngrams = {}, {}
    for row, span in enumerate(LONGEST):
        if span is not None:
            sentences[row] = first_vector(task, batch.inputs[row][batch.padding_mask[row]])
            ngrams[row] = first_vector(task, torch.tensor([10, *batch.targets[row, slice(*span)].tolist(), 11]))
    nats, correct = [], 0
    for row, sentence in sentences.items():
        others = [other for other in ngrams if other != row and {row, other} != {1, 4}]
        score = {other: sentence @ ngrams[other] / 3.0 for other in (row, *others)}
        if task.config.loss == "info_nce":
            nats.append(torch.logsumexp(torch.stack([*score.values()]), 0) - score[row])
        else:
            noise = [torch.sigmoid(-score[other]).log() for other in others]
            nats.append(-torch.sigmoid(score[row]).log() - sum(noise))
        correct += int(score[row] == max(score.values()))
    return nats, correct


@pytest.mark.any_device
@pytest.mark.parametrize("loss", ["info_nce", "binary_nce"])
def test_the_loss_is_that_of_the_definition(loss: Literal["info_nce", "binary_nce"]) -> None:
    task, batch = task_of(loss=loss, masked_weight=0.5), rows()
    nats, correct = by_definition(task, batch)
    masked = MaskedLMConfig().build(BERT, replace(DATA, relations=0), TrainingConfig(device="cpu"))
    masked = placed(masked.double())
    masked.load_state_dict(task.state_dict())
    of_symbols = masked.training_step(batch, 0)["loss"]
    output = task.training_step(batch, 0)
    same(output["loss"], sum(nats) / 4 + 0.5 * of_symbols)
    output["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters())
    task.eval()
    with torch.no_grad():
        task.validation_step(batch, 0)
    results = task.metric.compute()
    assert (
        results["nats"] == pytest.approx((sum(nats) / 4).item(), rel=bound(1e-6)) and results["accuracy"] == correct / 4
    )
    assert results["masked_nats"] == pytest.approx(of_symbols.item(), rel=bound(1e-6))
    assert [row.document for row in task.metric.per_document()] == [0, 1, 2, 4]


def test_the_longest_span_of_a_row_is_compared_the_first_of_several_up_to_the_longest_that_is_read() -> None:
    targets = torch.full((3, 9), IGNORED)
    targets[0, 1:3], targets[0, 4:6], targets[1, 5:9] = torch.tensor([1, 2]), torch.tensor([3, 4]), torch.arange(5, 9)
    ngrams = longest_spans(targets, 3)
    assert ngrams.symbols.tolist() == [[1, 2, 0], [5, 6, 7], [0, 0, 0]] and ngrams.lengths.tolist() == [2, 3, 0]


def test_without_hidden_symbols_their_softmax_is_not_trained_and_costs_nothing() -> None:
    task, batch = task_of(masked_weight=0.0), rows()
    task.training_step(batch, 0)["loss"].backward()
    assert {p.requires_grad for p in task.network.prediction_only()} == {False}
    assert all(p.grad is not None for p in task.parameters() if p.requires_grad)
    with_symbols, without = (ContrastiveConfig(masked_weight=weight).cost(BERT, DATA) for weight in (1.0, 0.0))
    predictions = DATA.predictions * 2 * (BERT.dim * BERT.dim + BERT.dim * DATA.vocabulary.size)
    assert (with_symbols.flops_per_token - without.flops_per_token) * DATA.length == pytest.approx(predictions)
    assert without.parameters == sum(p.numel() for p in task.parameters() if p.requires_grad)
    plain = MaskedLMConfig().cost(BERT, replace(DATA, relations=0))
    of_ngrams = task.network.flops(12)
    assert (with_symbols.flops_per_token - plain.flops_per_token) * DATA.length == pytest.approx(of_ngrams)


def test_rows_whose_first_symbol_sees_no_other_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^task: the first symbol of a row has to see all of it; drop data.attention"
    ):
        ContrastiveConfig().build(BERT, replace(DATA, ordered=True), TrainingConfig(device="cpu"))


def joined(first: RowBatch, second: RowBatch) -> RowBatch:
    """The rows of both batches, in one."""
    return RowBatch(*(torch.cat(pair) for pair in zip(first[:6], second[:6], strict=True)), None)


def gradients(task: Contrastive, batch: RowBatch) -> dict[str, Tensor]:
    output = task.training_step(batch, 0)
    output["loss"].backward()
    return {name: p.grad for name, p in task.named_parameters() if p.grad is not None} | {"nats": output["nats"]}


def one_of_two(directory: Path) -> None:
    """Writes the mean over ranks of the gradients of a rank's rows, as DDP computes it; for ``Forked``."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    results = gradients(task_of(), rows(rank))
    for name, gradient in results.items():
        if name != "nats":
            torch.distributed.all_reduce(gradient)
            gradient /= 2
    torch.save(results, directory / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_compare_the_rows_of_both_as_one_process_does(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", one_of_two, tmp_path, ranks=2).finish()
    expected = gradients(task_of(), joined(rows(0), rows(1)))
    apart = gradients(task_of(), rows(0))
    assert not math.isclose(float(apart["nats"]), float(expected["nats"]), rel_tol=1e-3), "other rows count"
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        assert results.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(results[name], gradient)
