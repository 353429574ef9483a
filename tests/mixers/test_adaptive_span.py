"""Adaptive spans equal their equations, written pair by pair; spans learn, stay in range, and set the cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.attention.executors import attend
from lit_transformers.attention.patterns import Band
from lit_transformers.config import ConfigError
from lit_transformers.encodings import RotaryConfig, ShawConfig, XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AdaptiveSpanConfig, AttentionConfig
from lit_transformers.mixers.adaptive_span.adaptive_span import EPSILON, TRIM, AdaptiveSpan
from lit_transformers.mixers.adaptive_span.spans import Constant, Dynamic
from lit_transformers.mixers.qkv import HeadsOutput
from lit_transformers.models import LanguageModelConfig

DIM, HEADS, HEAD_DIM = 6, 2, 3
SHAPE = Shape(DIM, HEADS, 32)
FIXED: dict[str, Any] = {"learns": "fixed", "penalty": 0.0}
LONG = 300


def build(shape: Shape = SHAPE, fractions: tuple[float, ...] | None = None, **knobs: Any) -> AdaptiveSpan:
    """With weights large enough to show a difference, and learned spans at ``fractions`` of the largest."""
    torch.manual_seed(0)
    layer = AdaptiveSpanConfig(**knobs).build(shape).double()
    for name, parameter in layer.named_parameters():
        if name != "spans.fraction":
            nn.init.normal_(parameter, std=0.7)
    if fractions is not None:
        set_fractions(layer, *fractions)
    return layer


def set_fractions(layer: AdaptiveSpan, *fractions: float) -> None:
    """Sets z'."""
    assert isinstance(layer.spans, Constant)
    with torch.no_grad():
        layer.spans.fraction.copy_(torch.tensor(fractions))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def context(length: int, padding_mask: Tensor | None = None) -> Context:
    return Context(
        torch.arange(length).expand(1 if padding_mask is None else len(padding_mask), length), True, padding_mask
    )


def same(ours: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def oracle(layer: AdaptiveSpan, x: Tensor) -> Tensor:
    """x (t, d) to y (t, d) by section 2.2 of arXiv:1905.07799, with no epsilon and no key left out but by the mask."""
    outputs = []
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        q, k, v = (linear.weight[rows] for linear in (layer.query, layer.key, layer.value))
        head_outputs = [torch.zeros(HEAD_DIM, dtype=x.dtype)]
        for t in range(1, len(x)):
            past = range(max(0, t - layer.span), t)
            z = span(layer, head, x[t])
            masks = torch.stack([((layer.ramp + z - (t - r)) / layer.ramp).clamp(0, 1) for r in past])
            terms = masks * torch.stack([((q @ x[t]) @ (k @ x[r]) * HEAD_DIM**-0.5).exp() for r in past])
            head_outputs.append(terms / terms.sum() @ torch.stack([v @ x[r] for r in past]))
        outputs.append(torch.stack(head_outputs))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


def span(layer: AdaptiveSpan, head: int, x: Tensor) -> Tensor:
    match layer.spans:
        case Constant(fraction=fraction):
            return layer.span * fraction[min(head, len(fraction) - 1)]
        case Dynamic(direction=v, offset=b):
            which = min(head, len(b) - 1)
            return layer.span / (1 + (-(v[which] @ x + b[which])).exp())
    raise TypeError(type(layer.spans))


CASES: list[dict[str, Any]] = [
    {"span": 8, "ramp": 3, "fractions": (0.1, 0.7)},
    {"span": 5, "ramp": 9, "fractions": (0.0, 1.0)},
    {"span": 50, "ramp": 4, "fractions": (0.05, 0.21)},
    {"span": 9, "ramp": 4, "share": "layer", "fractions": (0.3,)},
    {"span": 9, "ramp": 4, "share": "model", "fractions": (0.3,)},
    {"span": 9, "ramp": 4, "initial": 0.3, **FIXED},
    {"span": 9, "ramp": 1, "initial": 0.5, **FIXED},
    {"span": 9, "ramp": 4, "learns": "dynamic"},
    {"span": 9, "ramp": 4, "learns": "dynamic", "share": "layer"},
]


@pytest.mark.parametrize("knobs", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_the_equations(knobs: dict[str, Any]) -> None:
    layer, x = build(**knobs), noise(12, DIM).requires_grad_()
    expected, y = oracle(layer, x), layer(x[None], context(12)).y[0]
    same(y, expected, 1e-6)  # the equations know no epsilon
    leaves, probe = [x, *layer.parameters()], noise(12, DIM)
    for gradient, expected_gradient in zip(
        *(torch.autograd.grad((z * probe).sum(), leaves) for z in (y, expected)), strict=True
    ):
        same(gradient, expected_gradient, 1e-5)


def test_a_token_does_not_see_itself_and_the_first_sees_nothing() -> None:
    layer, x = build(span=8, ramp=3), noise(1, 6, DIM)
    y = layer(x, context(6)).y
    assert not y[:, 0].any()
    values = nn.functional.linear(x, layer.value.weight)
    expected = layer.merge(values[:, :1])
    same(y[:, 1:2], expected, 1e-6)


def test_masked_weights_are_divided_by_their_sum() -> None:
    layer = build(span=8, ramp=4, fractions=(0.1, 0.7))
    logits, i, j = noise(1, HEADS, 1, 7), torch.tensor([[7]]), torch.arange(7)
    weights = layer.masked(0, logits, i, j, layer.spans(noise(1, 1, DIM)))
    same(weights.sum(-1), torch.ones(1, HEADS, 1, dtype=torch.float64), 1e-6)
    assert (weights == 0).sum() == 3, "beyond a span of 0.8 and a ramp of 4"


def test_a_large_score_that_the_mask_hides_takes_nothing_from_the_others() -> None:
    layer = build(span=8, ramp=2, fractions=(0.0, 0.0))
    logits = torch.tensor([0.0, -40.0], dtype=torch.float64).repeat(1, HEADS, 1, 1)
    weights = layer.masked(0, logits, torch.tensor([[2]]), torch.arange(2), layer.spans(noise(1, 1, DIM)))
    same(weights[0, 0, 0], torch.tensor([0.0, 0.5 / (0.5 + EPSILON)], dtype=torch.float64))


def test_a_row_whose_mask_hides_everything_gives_zeros() -> None:
    layer = build(span=8, ramp=2, fractions=(-1.0, 0.0))
    x = noise(1, 5, DIM).requires_grad_()
    y = layer(x, context(5)).y
    y.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    weights = layer.masked(0, noise(1, HEADS, 1, 3), torch.tensor([[3]]), torch.arange(3), layer.spans(x))
    assert not weights[:, 0].any() and weights[:, 1].any()


@pytest.mark.parametrize("encoding", [None, XLConfig(), RotaryConfig(), ShawConfig(distance=4)], ids=str)
@pytest.mark.parametrize("length", [1, 2, 9, LONG])
def test_a_span_beyond_the_history_is_plain_attention_without_the_current_token(encoding: Any, length: int) -> None:
    layer = build(span=800, ramp=32, encoding=encoding, fractions=(1.0, 1.0))
    attention = AttentionConfig(encoding=encoding).build(SHAPE).double()
    attention.load_state_dict({name: value for name, value in layer.state_dict().items() if "spans" not in name})

    def without_itself(inputs: Any, ctx: Context, segment: Any) -> Any:
        return HeadsOutput(attend(Band(None, -1), inputs, encoding=attention.relative, scale=attention.scale))

    attention.attend = without_itself  # type: ignore[method-assign]
    x = noise(2, length, DIM)
    same(layer(x, context(length)).y, attention(x, context(length)).y, 1e-6)


@pytest.mark.parametrize("fractions", [(0.0, 0.0), (0.01, 0.31), (0.31, 1.0)])
@pytest.mark.parametrize("encoding", [None, XLConfig()], ids=str)
def test_leaving_out_keys_beyond_a_span_changes_nothing(fractions: tuple[float, float], encoding: Any) -> None:
    layer, x, probe = (
        build(span=250, ramp=10, encoding=encoding, fractions=fractions),
        noise(1, LONG, DIM),
        noise(LONG, DIM),
    )
    parameters = list(layer.parameters())

    def run() -> tuple[Tensor, ...]:
        y = layer(x, context(LONG)).y[0]
        return (y, *torch.autograd.grad((y * probe).sum(), parameters))

    results = run()
    layer.patterns = lambda: [Band(250, -1)] * HEADS  # type: ignore[method-assign]
    for result, expected in zip(results, run(), strict=True):
        same(result, expected)


@pytest.mark.slow
def test_the_cost_of_each_head_is_that_of_its_own_span() -> None:
    layer = build(Shape(16, 4, 32), span=2048, ramp=32, share="none")
    costs = []
    for fractions in ((1.0,) * 4, (1.0, 0.0, 0.0, 0.0), (0.0,) * 4):
        set_fractions(layer, *fractions)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            layer(noise(1, 4096, 16), context(4096))
        costs.append(counter.get_total_flops())
        assert layer.flops(4096, 0) == pytest.approx(costs[-1], rel=0.02)
    projections = layer.projection_flops(4096, 4096)
    full_span, one_full_span, shortest_span = (cost - projections for cost in costs)
    assert shortest_span < full_span / 5
    assert one_full_span == pytest.approx((full_span + 3 * shortest_span) / 4, rel=0.01)


def test_bands_are_multiples_of_a_granule_and_never_wider_than_the_largest_span() -> None:
    layer = build(span=200, ramp=32, fractions=(0.0, 1.0))
    assert [band.before for band in layer.patterns()] == [TRIM, 200]
    set_fractions(layer, 0.2, 0.161)
    assert [band.before for band in layer.patterns()] == [2 * TRIM, TRIM]
    assert all(band.after == -1 for band in layer.patterns())


def test_spans_that_shrank_and_grow_again_find_their_memory() -> None:
    layer, x = build(span=200, ramp=4, memory=200, fractions=(0.0, 0.0)), noise(1, 250, DIM)
    state = None
    for start in range(0, 240, 40):
        state = layer(x[:, start : start + 40], context(40), state).state
    set_fractions(layer, 1.0, 1.0)
    same(layer(x[:, 240:], context(10), state).y, layer(x, context(250)).y[:, 240:])


@pytest.mark.parametrize("share", ["none", "layer", "model"])
def test_the_penalty_is_the_mean_span_of_the_heads_in_tokens(share: Any) -> None:
    fractions = (0.25, 0.75) if share == "none" else (0.5,)
    layer = build(span=400, penalty=3e-3, share=share, fractions=fractions)
    assert layer(noise(1, 5, DIM), context(5)).aux["span"].item() == pytest.approx(3e-3 * 400 * 0.5)


def test_the_penalty_of_dynamic_spans_is_the_mean_over_real_tokens() -> None:
    layer, x = build(span=40, penalty=0.5, learns="dynamic"), noise(1, 5, DIM)
    padding_mask = torch.tensor([[True, True, True, False, False]])
    expected = torch.stack([span(layer, head, x[0, t]) for head in range(HEADS) for t in range(3)]).mean()
    same(layer(x, context(5, padding_mask)).aux["span"], 0.5 * expected)


def test_a_fixed_span_has_no_penalty_and_no_parameter() -> None:
    layer = build(initial=0.5, **FIXED)
    assert layer(noise(1, 5, DIM), context(5)).aux == {}
    assert not [name for name, _ in layer.named_parameters() if "spans" in name]


def test_a_model_adds_the_penalties_of_its_layers() -> None:
    mixer = AdaptiveSpanConfig(span=100, penalty=0.01, initial=0.5)
    network = LanguageModelConfig(dim=8, heads=2, depth=3, mixer=mixer).build(probe_data(11, 16))
    assert network(torch.zeros(1, 16, dtype=torch.long)).aux["span"].item() == pytest.approx(3 * 0.01 * 50)


def test_after_a_step_spans_are_back_in_range() -> None:
    layer = build(fractions=(-0.2, 1.3))
    layer.after_step()
    assert isinstance(layer.spans, Constant) and layer.spans.fraction.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("fractions", [(0.01, 0.99), (0.21, 0.63)])
def test_the_gradient_of_a_span_is_its_finite_difference(fractions: tuple[float, float]) -> None:
    layer, x, probe = build(span=20, ramp=7, fractions=fractions), noise(1, 25, DIM), noise(25, DIM)
    assert isinstance(layer.spans, Constant) and isinstance(layer.spans.fraction, nn.Parameter)
    fraction = layer.spans.fraction

    def loss(change: Tensor) -> Tensor:
        with torch.no_grad():
            fraction.add_(change)
        total: Tensor = (layer(x, context(25)).y[0] * probe).sum()
        with torch.no_grad():
            fraction.sub_(change)
        return total

    (gradient,) = torch.autograd.grad((layer(x, context(25)).y[0] * probe).sum(), fraction)
    for head in range(HEADS):
        step = 1e-7 * torch.nn.functional.one_hot(torch.tensor(head), HEADS).double()
        same(gradient[head], (loss(2 * step) - loss(torch.zeros_like(step))) / 2e-7, 1e-4)


@pytest.mark.parametrize(("share", "count"), [("none", 6), ("layer", 3), ("model", 1)])
@pytest.mark.parametrize("learns", ["adaptive", "dynamic"])
def test_spans_are_of_heads_of_layers_or_of_the_model(share: Any, count: int, learns: Any) -> None:
    mixer = AdaptiveSpanConfig(share=share, learns=learns)
    network = LanguageModelConfig(dim=8, heads=2, depth=3, mixer=mixer).build(probe_data(11, 16))
    spans = {id(module): module for module in network.modules() if isinstance(module, Constant | Dynamic)}
    first = "fraction" if learns == "adaptive" else "offset"
    assert sum(getattr(module, first).numel() for module in spans.values()) == count


def test_spans_start_where_the_paper_says_or_where_they_are_told() -> None:
    x = noise(1, 3, DIM)

    def start(**knobs: Any) -> Tensor:
        layer = AdaptiveSpanConfig(span=1000, **knobs).build(SHAPE).double()
        spans: Tensor = layer.spans(x)
        return spans.unique()

    same(start(), noise(1) * 0)
    same(start(initial=0.25), 250 + noise(1) * 0)
    same(start(learns="dynamic"), 1000 / (1 + torch.tensor([4.0], dtype=torch.float64).exp()), 1e-4)
    same(start(learns="dynamic", initial=0.25), 250 + noise(1) * 0, 1e-4)


def test_the_average_span_includes_the_ramp_and_ends_at_the_largest() -> None:
    layer, x = build(span=100, ramp=32, fractions=(0.0, 0.1)), noise(1, 3, DIM)
    assert layer.average_span(x) == pytest.approx((32 + 42) / 2)
    set_fractions(layer, 0.0, 0.9)
    assert layer.average_span(x) == pytest.approx((32 + 100) / 2)


@pytest.mark.slow
def test_a_model_whose_task_pays_for_spans_shortens_them_and_one_whose_task_needs_them_lengthens_them() -> None:
    """The target is the input four tokens back; ramps begin at two."""
    torch.manual_seed(0)
    span_by_penalty = {}
    for penalty in (0.0, 0.5):
        layer = AdaptiveSpanConfig(
            span=16, ramp=2, penalty=penalty, initial=0.25, encoding=XLConfig(), share="layer"
        ).build(SHAPE)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
        for _ in range(200):
            x = torch.randn(4, 24, DIM)
            mixed = layer(x, context(24))
            loss = (mixed.y[:, 4:] - x[:, :-4]).square().mean() + mixed.aux["span"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            layer.after_step()
        span_by_penalty[penalty] = layer.average_span(x)
    assert span_by_penalty[0.5] == 2.0
    assert span_by_penalty[0.0] > 4.0


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"learns": "fixed", "penalty": 0.0}, "set initial"),
        ({"learns": "fixed", "initial": 0.5}, "set penalty: 0"),
        ({**FIXED, "initial": 0.5, "share": "layer"}, "set share: none"),
        ({"learns": "dynamic", "initial": 0.0}, "between 0 and 1"),
        ({"ramp": 1}, "set ramp: 2 or more"),
        ({**FIXED, "initial": 0.0, "ramp": 1}, "show no key"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        AdaptiveSpanConfig(**knobs)
