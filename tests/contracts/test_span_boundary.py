"""Symbols of hidden spans are predicted from the symbols next to them and from their places, and from nothing else."""

from __future__ import annotations

import pytest
import torch
from numerics import bound, placed, same
from test_masked_lm import BERT, DATA
from torch import Tensor

from lit_transformers.batch import IGNORED, RowBatch
from lit_transformers.heads import SpanBoundaryConfig
from lit_transformers.heads.span_boundary import SpanBoundary, boundaries
from lit_transformers.models import ModelConfig
from lit_transformers.tasks.masked_lm import MaskedLM, MaskedLMConfig
from lit_transformers.training.config import TrainingConfig

CONFIG = MaskedLMConfig(span_boundary=SpanBoundaryConfig(longest=3, width=5, weight=0.5))
SPANS = {0: [(2, 3), (5, 9)], 1: [(1, 4)], 2: [], 3: [(3, 5), (6, 7)]}
"""The spans of each row, from their first symbol to the one after their last."""


def rows() -> RowBatch:
    padding_mask = torch.arange(12) < torch.tensor([[12], [9], [5], [11]])
    symbols = torch.randint(1, 10, (4, 12)).masked_fill(~padding_mask, 0)
    targets = torch.full_like(symbols, IGNORED)
    for row, spans in SPANS.items():
        for start, stop in spans:
            targets[row, start:stop] = symbols[row, start:stop]
            symbols[row, start:stop] = 12
    none = torch.full((4,), IGNORED)
    return RowBatch(symbols, targets, padding_mask, torch.zeros_like(symbols), none, torch.arange(4), None)


def boundary_lm(model: ModelConfig = BERT) -> MaskedLM:
    torch.manual_seed(0)
    return placed(CONFIG.build(model, DATA, TrainingConfig(device="cpu")).double())


def by_definition(task: MaskedLM, batch: RowBatch, hidden: Tensor) -> list[Tensor]:
    """-log p(x_i | x_{s-1}, x_{e+1}, p_{i-s+1}) for each symbol, by equation 1 of the paper."""
    head, nats = task.heads["boundary"], []
    first, gelu, norm, second, _, last_norm = head.map
    for row, spans in SPANS.items():
        for start, stop in spans:
            for i in range(start, min(stop, start + 3)):
                h0 = torch.cat([hidden[row, start - 1], hidden[row, stop], head.places.weight[i - start]])
                y = last_norm(gelu(second(norm(gelu(first(h0))))))
                nats.append(-task.network.tokens.log_probabilities(y)[batch.targets[row, i]])
    return nats


@pytest.mark.any_device
@pytest.mark.parametrize("embedding_dim", [None, 6])
def test_the_loss_is_that_of_the_definition(embedding_dim: int | None) -> None:
    task, batch = boundary_lm(BERT.override({"embedding_dim": embedding_dim})), rows()
    hidden = task.network.read_row(batch.inputs, batch.padding_mask, (torch.arange(12) == 0).expand(4, -1)).hidden
    beside = by_definition(task, batch, hidden)
    assert len(beside) == 1 + 3 + 3 + 2 + 1
    plain = MaskedLMConfig().build(BERT.override({"embedding_dim": embedding_dim}), DATA, TrainingConfig(device="cpu"))
    plain = placed(plain.double())
    plain.load_state_dict({k: v for k, v in task.state_dict().items() if not k.startswith("heads.boundary.")})
    losses = [each.training_step(batch, 0)["loss"] for each in (task, plain)]
    same(losses[0] - losses[1], 0.5 * sum(beside) / len(beside))
    losses[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.heads["boundary"].parameters())
    task.eval().validation_step(batch, 0)
    assert task.metric.compute()["boundary_nats"] == pytest.approx((sum(beside) / len(beside)).item(), rel=bound(1e-6))
    assert [row.boundary_tokens for row in task.metric.per_document()] == [4, 3, 3]


def test_spans_that_touch_are_one_and_one_at_the_edge_has_no_boundary() -> None:
    targets = torch.full((2, 6), IGNORED)
    targets[0, 2:4], targets[1, 0:2], targets[1, 4:6] = 1, 2, 3
    spans = boundaries(targets, longest=20)
    assert [part.tolist() for part in (spans.positions.row, *spans[1:])] == [[0, 0], [1, 1], [4, 4], [0, 1], [1, 1]]


def test_vectors_within_spans_are_not_read() -> None:
    task, batch = boundary_lm().eval(), rows()
    hidden = torch.randn(4, 12, BERT.dim, dtype=torch.float64)
    spans = boundaries(batch.targets, 3)
    within = (batch.targets != IGNORED)[..., None]
    head = task.heads["boundary"]
    assert isinstance(head, SpanBoundary)
    with torch.no_grad():
        torch.testing.assert_close(head.vectors(hidden, spans), head.vectors(hidden.masked_fill(within, 7.0), spans))


def test_a_cost_counts_the_head_and_a_second_softmax() -> None:
    plain, with_head = MaskedLMConfig().cost(BERT, DATA), CONFIG.cost(BERT, DATA)
    dim, count = BERT.dim, DATA.predictions
    maps = (2 * dim + 5) * dim + dim * dim
    assert with_head.parameters - plain.parameters == maps + 2 * dim + 4 * dim + 3 * 5
    flops = (with_head.flops_per_token - plain.flops_per_token) * DATA.length
    assert flops == pytest.approx(2 * count * (maps + dim * DATA.vocabulary.size))
