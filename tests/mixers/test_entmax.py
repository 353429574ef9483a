"""Entmax attention equals its definition, its limits the softmax and sparsemax, and alpha learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from entmax import entmax_bisect
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig, EntmaxConfig
from lit_transformers.mixers.entmax.entmax import LEAST, Entmax
from lit_transformers.mixers.entmax.weights import SHORT

DIM, HEADS, HEAD_DIM = 6, 2, 3
SHAPE = Shape(DIM, HEADS, 32)
LONG = 300
ALPHAS = [1.1, 1.5, 1.8, 2.0, "learned"]


def build(std: float = 0.7, **knobs: Any) -> Entmax:
    torch.manual_seed(0)
    layer = EntmaxConfig(**knobs).build(SHAPE).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=std)
    return layer


@pytest.fixture(params=[True, False], ids=["host", "device"])
def _host_and_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as they are computed on a CPU, and on a device of which the host reads no values."""
    monkeypatch.setattr("lit_transformers.mixers.entmax.weights.reads_at_once", lambda tensor: request.param)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def context(
    length: int, causal: bool = True, padding_mask: Tensor | None = None, source: Tensor | None = None
) -> Context:
    rows = 1 if padding_mask is None else len(padding_mask)
    return Context(torch.arange(length).expand(rows, length), causal, padding_mask, source)


def same(ours: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def weights_of(layer: Entmax, logits: Tensor) -> Tensor:
    """The weights of a block of logits (b, h, t, s)."""
    weighting = layer.weigh()
    assert weighting is not None
    i, j = torch.arange(logits.size(-2))[:, None], torch.arange(logits.size(-1))
    weights: Tensor = weighting.apply(logits, i, j, *weighting.tensors)
    return weights


def scores_of(layer: Entmax, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (h, t, s) and values (h, s, k) of one sequence."""
    q, k, v = (
        linear(part).unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)
        for linear, part in ((layer.query, x), (layer.key, source), (layer.value, source))
    )
    return q @ k.mT * HEAD_DIM**-0.5, v


@pytest.mark.usefixtures("_host_and_device")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", [1, 9, SHORT + 30])
def test_weights_solve_the_equations_that_define_them(alpha: Any, size: int) -> None:
    """p = [(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)): one tau for all keys that are visible, none above it unseen."""
    layer = build(alpha=alpha)
    logits = noise(1, HEADS, 4, size) * 2
    p = weights_of(layer, logits.clone())
    same(p.sum(-1), torch.ones(1, HEADS, 4, dtype=torch.float64))
    power = layer.alpha - 1
    taus = power * logits - p**power
    tau = taus.masked_fill(p == 0, -torch.inf).amax(-1, keepdim=True)
    same(taus[p > 0], tau.expand_as(taus)[p > 0], 1e-8)
    assert ((power * logits <= tau + 1e-8) | (p > 0)).all()
    if size > 9 and alpha != 1.1:
        assert (p == 0).any()


@pytest.mark.usefixtures("_host_and_device")
@pytest.mark.parametrize("std", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, "learned"])
def test_weights_over_many_keys_are_those_found_without_choosing_candidates(alpha: Any, std: float) -> None:
    """Gradients too, of alpha where it is learned."""
    layer = build(alpha=alpha)
    logits, probe = noise(2, HEADS, 3, 3 * SHORT + 5) * std, noise(2, HEADS, 3, 3 * SHORT + 5)
    leaves = [logits.requires_grad_(), *([] if layer.free is None else [layer.free])]
    expected = entmax_bisect(logits, layer.alpha, dim=-1, n_iter=60)
    ours = weights_of(layer, logits.clone())
    same(ours, expected, 1e-7)
    for gradient, reference in zip(
        *(torch.autograd.grad((weights * probe).sum(), leaves) for weights in (ours, expected)), strict=True
    ):
        same(gradient, reference, 1e-6)


@pytest.mark.usefixtures("_host_and_device")
@pytest.mark.parametrize("alpha", [1.5, "learned"])
def test_of_many_keys_only_those_that_are_seen_compete(alpha: Any) -> None:
    """Those of a row may be anywhere: among the first, in the last, incomplete group, or a single one."""
    layer, visible = build(alpha=alpha), torch.zeros(4, 2 * SHORT + 3, dtype=torch.bool)
    for row, keys in enumerate([[0], [-1], [3, -1], list(range(5, 200))]):
        visible[row, keys] = True
    logits = noise(1, HEADS, 4, 2 * SHORT + 3)
    weights = weights_of(layer, logits.masked_fill(~visible, -torch.inf))
    for row in range(4):
        same(weights[..., row, visible[row]], weights_of(layer, logits[..., [row], :][..., visible[row]])[..., 0, :])
        assert not weights[..., row, ~visible[row]].any()


def test_weights_do_not_depend_on_how_large_all_scores_are() -> None:
    layer = build(alpha=1.5).float()
    logits = (torch.randn(1, HEADS, 4, 2 * SHORT) * 64).round() / 64
    assert torch.equal(weights_of(layer, logits + 4096), weights_of(layer, logits.clone()))


@pytest.mark.usefixtures("_host_and_device")
def test_scores_that_are_no_numbers_give_weights_that_are_none() -> None:
    logits = noise(1, HEADS, 2, 2 * SHORT)
    logits[0, 0, 1, 7] = torch.nan
    bad = weights_of(build(alpha=1.5), logits).isnan().any(dim=-1)
    assert bad.tolist() == [[[False, True], [False, False]]]


@pytest.mark.usefixtures("_host_and_device")
@pytest.mark.parametrize("alpha", ALPHAS)
def test_hidden_keys_weigh_exactly_nothing(alpha: Any) -> None:
    layer = build(alpha=alpha)
    logits = noise(2, HEADS, 3, 100)
    hidden = torch.rand(3, 100) < 0.5
    logits = logits.masked_fill(hidden, -torch.inf).requires_grad_()
    weights = weights_of(layer, logits.clone())
    assert not weights[..., hidden].any() and weights.isfinite().all()
    weights.square().sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and not logits.grad[..., hidden].any()


@pytest.mark.usefixtures("_host_and_device")
@pytest.mark.parametrize("free", [-30.0, 30.0])
def test_an_alpha_pushed_to_its_limits_stays_a_number_after_the_step(free: float) -> None:
    layer = build(alpha="learned").float()
    assert layer.free is not None
    nn.init.constant_(layer.free, free)
    layer.after_step()
    assert layer.alpha.min() >= 1 + LEAST - 1e-6
    x = torch.randn(2, 9, DIM, requires_grad=True)
    layer(x, context(9)).y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [9, LONG])
def test_an_alpha_of_one_is_plain_attention(causal: bool, length: int) -> None:
    layer, attention = build(alpha=1.0), AttentionConfig().build(SHAPE).double()
    attention.load_state_dict(layer.state_dict())
    x, ctx = noise(1, length, DIM), context(length, causal)
    same(layer(x, ctx).y, attention(x, ctx).y)


def test_near_an_alpha_of_one_the_weights_near_those_of_the_softmax() -> None:
    torch.manual_seed(0)
    logits = noise(1, HEADS, 3, 20)
    distances = [
        (weights_of(build(alpha=1 + step), logits.clone()) - logits.softmax(-1)).abs().max()
        for step in (0.1, 0.01, 1e-3)
    ]
    assert distances[1] < distances[0] / 5 and distances[2] < distances[1] / 5


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_queries_give_what_the_whole_gives(alpha: Any, causal: bool) -> None:
    layer, x = build(alpha=alpha), noise(LONG, DIM)
    logits, v = scores_of(layer, x, x)
    if causal:
        logits = logits.masked_fill(torch.ones(LONG, LONG).triu(1).bool(), -torch.inf)
    expected = layer.merge((weights_of(layer, logits[None])[0] @ v).transpose(0, 1).flatten(1))
    same(layer(x[None], context(LONG, causal)).y[0], expected, 1e-7)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_across_two_sequences_all_of_the_source_competes(alpha: Any) -> None:
    layer, x, source = build(alpha=alpha), noise(5, DIM), noise(7, DIM)
    logits, v = scores_of(layer, x, source)
    expected = layer.merge((weights_of(layer, logits[None])[0] @ v).transpose(0, 1).flatten(1))
    same(layer(x[None], context(5, source=source[None])).y[0], expected)


def test_each_head_learns_an_alpha_of_its_own_that_starts_at_one_and_a_half() -> None:
    layer = EntmaxConfig().build(SHAPE)
    assert layer.alpha.flatten().tolist() == [1.5] * HEADS
    assert "free" in dict(layer.named_parameters())
    assert "free" not in dict(EntmaxConfig(alpha=1.5).build(SHAPE).named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("length", [7, LONG])
def test_the_gradient_of_alpha_is_its_finite_difference(length: int) -> None:
    layer, x, probe = build(alpha="learned"), noise(1, length, DIM), noise(1, length, DIM)
    free = layer.free
    assert free is not None

    def loss() -> Tensor:
        total: Tensor = (layer(x, context(length)).y * probe).sum()
        return total

    (gradient,) = torch.autograd.grad(loss(), free)
    for head in range(HEADS):
        step = torch.zeros(HEADS, dtype=torch.float64)
        step[head] = 1e-6
        with torch.no_grad():
            free += step
            above = loss()
            free -= 2 * step
            below = loss()
            free += step
        same(gradient[head], (above - below) / 2e-6, 1e-5)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, "learned"])
def test_gradients_of_inputs_and_weights_are_finite_differences(alpha: Any) -> None:
    layer, x = build(alpha=alpha), noise(1, 6, DIM).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, context(6)).y, (x,), atol=1e-6)


def test_more_iterations_come_nearer() -> None:
    torch.manual_seed(0)
    logits = noise(1, HEADS, 3, 20)
    exact = weights_of(build(alpha=1.3), logits.clone())
    distances = [
        (weights_of(build(alpha=1.3, iterations=count), logits.clone()) - exact).abs().max() for count in (2, 6, 12)
    ]
    assert distances[0] > distances[1] > distances[2] > 0


@pytest.mark.parametrize("iterations", [1, 2, 8])
@pytest.mark.parametrize("visible", [9, SHORT + 30])
def test_hidden_keys_change_no_weight_however_few_the_iterations(iterations: int, visible: int) -> None:
    layer = build(alpha="learned", iterations=iterations)
    logits = noise(1, HEADS, 4, visible)
    padded = torch.cat([logits, torch.full((1, HEADS, 4, 2 * SHORT), -torch.inf).double()], dim=-1)
    expected = weights_of(layer, logits.clone())
    same(weights_of(layer, padded)[..., :visible], expected)
    same(expected.sum(-1), torch.ones(1, HEADS, 4).double())


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_iterations_where_there_is_no_bisection_are_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="needs none; drop them"):
        EntmaxConfig(alpha=alpha, iterations=9)


@pytest.mark.parametrize("alpha", [0.9, 2.1, "lerned"])
def test_an_alpha_that_is_none_is_refused(alpha: Any) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        EntmaxConfig(alpha=alpha)
