"""The adaptive softmax in fixed shapes computes the same as the library's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.fixed_shapes import FixedShapes, capacities_of
from lit_transformers.batch import IGNORED
from lit_transformers.models.tokens import AdaptiveTokenEmbedding, AdaptiveTokenEmbeddingConfig


def build_tokens(tied: bool = True) -> AdaptiveTokenEmbedding:
    torch.manual_seed(0)
    return AdaptiveTokenEmbeddingConfig(cutoffs=(5, 12), shrink=2, tied=tied).build(23, 16).double()


def outputs_and_gradients(
    tokens: AdaptiveTokenEmbedding, module: torch.nn.Module, symbols: Tensor, targets: Tensor
) -> list[Tensor]:
    """Vectors and losses, and the gradient of every weight and of the hidden vectors."""
    hidden = torch.randn(*targets.shape, 16, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    hidden.requires_grad_()
    vectors, nats = module.embed(symbols), module.nll(hidden, targets)
    loss = (vectors * torch.arange(16)).square().sum() + (nats * torch.arange(1, nats.numel() + 1).view_as(nats)).sum()
    return [vectors, nats, *torch.autograd.grad(loss, [hidden, *tokens.parameters()])]


@pytest.mark.parametrize("tied", [True, False])
def test_losses_vectors_and_gradients_are_those_of_the_library(tied: bool) -> None:
    tokens = build_tokens(tied)
    symbols, targets = torch.randint(0, 23, (2, 4, 9))
    targets[0, :3] = IGNORED
    fixed = FixedShapes(tokens, [15, 22])
    for output, expected in zip(
        outputs_and_gradients(tokens, fixed, symbols, targets),
        outputs_and_gradients(tokens, tokens, symbols, targets),
        strict=True,
    ):
        torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12)


def test_a_batch_with_more_targets_than_there_is_room_for_has_no_loss() -> None:
    tokens, targets = build_tokens(), torch.tensor([[5, 6, 7, 0]])
    hidden = torch.randn(1, 4, 16, dtype=torch.double)
    assert FixedShapes(tokens, [3, 1]).nll(hidden, targets).isfinite().all()
    assert FixedShapes(tokens, [2, 1]).nll(hidden, targets).isnan().all()


def test_there_is_room_for_the_fullest_of_the_batches() -> None:
    tokens = build_tokens()
    batches = torch.cat([torch.full((1, 200), 7), torch.full((1, 200), 0)])
    assert capacities_of(tokens, batches) == [200, 64]
