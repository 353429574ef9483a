"""Linear attention equals its equations, summed pair by pair; chunks, segments and precision change nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.attention import recompute
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Shape, detach, map_state, state_tensors
from lit_transformers.mixers import LinearConfig
from lit_transformers.mixers.feature_maps import FEATURE_MAPS, Features
from lit_transformers.mixers.linear import Linear, Sums, causal
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.cost import cost

DIM, HEADS, HEAD_DIM, LENGTH, EPS = 6, 2, 3, 7, 1e-3
SHAPE = Shape(DIM, HEADS, LENGTH)

SIMILARITIES: dict[Features, Callable[[Tensor, Tensor], Tensor]] = {
    "elu": lambda q, k: (nn.functional.elu(q) + 1) @ (nn.functional.elu(k) + 1),
    "relu": lambda q, k: q.clamp(min=0) @ k.clamp(min=0),
    "softplus": lambda q, k: q.exp().log1p() @ k.exp().log1p(),
    "polynomial": lambda q, k: (q @ k) ** 2,
}
features = pytest.mark.parametrize("name", SIMILARITIES)


def build(shape: Shape = SHAPE, std: float = 0.5, **knobs: Any) -> Linear:
    torch.manual_seed(0)
    layer = LinearConfig(eps=EPS, **knobs).build(shape).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=std)
    return layer


def context(length: int = LENGTH, causal: bool = True, rows: int = 1, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length).expand(rows, length), causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def oracle(layer: Linear, name: Features, x: Tensor, source: Tensor, causal: bool) -> Tensor:
    """Equation 3 with the features' similarity, not divided by sqrt(k): x (t, d) and source (s, d), head by head."""
    outputs = []
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        q, k, v = (linear.weight[rows] for linear in (layer.query, layer.key, layer.value))
        head_outputs = []
        for i in range(len(x)):
            visible_keys = range(i + 1) if causal else range(len(source))
            weights = [SIMILARITIES[name](q @ x[i], k @ source[j]) for j in visible_keys]
            total = torch.stack([w * (v @ source[j]) for w, j in zip(weights, visible_keys, strict=True)]).sum(0)
            head_outputs.append(total / (torch.stack(weights).sum() + EPS))
        outputs.append(torch.stack(head_outputs))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


def agree(layer: Linear, ours: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Outputs and the gradients of a random direction."""
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)
    direction, leaves = torch.randn_like(ours), [*inputs, *layer.parameters()]
    for gradient, expected_gradient in zip(
        *(torch.autograd.grad((y * direction).sum(), leaves) for y in (ours, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-8)


@features
@pytest.mark.parametrize("chunk_length", [1, 3, 7, 100])
def test_a_causal_pass_equals_the_equations(name: Features, chunk_length: int) -> None:
    layer, x = build(features=name, chunk_length=chunk_length), noise(1, LENGTH, DIM).requires_grad_()
    agree(layer, layer(x, context()).y[0], oracle(layer, name, x[0], x[0], causal=True), x)


@features
def test_a_pass_in_both_directions_equals_the_equations(name: Features) -> None:
    layer, x = build(features=name), noise(1, LENGTH, DIM).requires_grad_()
    agree(layer, layer(x, context(causal=False)).y[0], oracle(layer, name, x[0], x[0], causal=False), x)


@features
def test_a_pass_over_a_source_equals_the_equations(name: Features) -> None:
    layer, x, source = build(features=name), noise(1, LENGTH, DIM).requires_grad_(), noise(1, 4, DIM).requires_grad_()
    y = layer(x, context()._replace(source=source)).y[0]
    agree(layer, y, oracle(layer, name, x[0], source[0], causal=False), x, source)


def test_across_two_sequences_it_is_what_it_is_in_both_directions() -> None:
    layer, x = build(), noise(2, LENGTH, DIM)
    cross_y = layer(x, context(rows=2)._replace(source=x)).y
    torch.testing.assert_close(cross_y, layer(x, context(rows=2, causal=False)).y, atol=1e-12, rtol=1e-12)


@features
def test_gradients_of_chunks_and_of_the_state_are_those_of_differences(name: Features) -> None:
    torch.manual_seed(0)
    layer = build(features=name)
    count = layer.phi.channels(HEAD_DIM)
    q, k, v = (noise(1, 2, 5, size).requires_grad_() for size in (HEAD_DIM, HEAD_DIM, 2))
    products, total = noise(1, 2, count, 2).requires_grad_(), noise(1, 2, count).abs().requires_grad_()

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        past: Sums = {"products": tensors[3], "features": tensors[4]}
        y, sums = causal(layer.phi, *tensors[:3], None, past, 2, EPS)
        return y, *state_tensors(sums)

    assert torch.autograd.gradcheck(run, (q, k, v, products, total))


def test_pieces_of_a_long_row_are_what_it_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece continues from the sums of the one before, and the gradient of the last sums reaches the first."""
    layer, x = build(chunk_length=3), noise(2, 11, DIM).requires_grad_()
    state = map_state(lambda part: part.detach().requires_grad_(), layer(x, context(11, rows=2)).state)
    padding_mask = torch.tensor([[True] * 8 + [False] * 3, [False, *[True] * 10]])
    leaves, results = [x, *layer.parameters(), *state_tensors(state)], []
    for channels in (2**19, 1):
        monkeypatch.setitem(recompute.CHANNELS, "cpu", channels)
        output = layer(x, context(11, rows=2, padding_mask=padding_mask), state)
        outputs = [output.y, *state_tensors(output.state)]
        total = torch.stack([part.square().sum() for part in outputs]).sum()
        results.append((*outputs, *torch.autograd.grad(total, leaves)))
    torch.testing.assert_close(*results, atol=1e-9, rtol=1e-9)


def test_position_by_position_is_what_one_pass_is_in_single_precision() -> None:
    shape = Shape(64, 4, 300)
    layer, x, state, outputs = build(shape, std=0.1).float(), torch.randn(2, 300, 64), None, []
    for position in x.split(1, dim=1):
        output = layer(position, context(1, rows=2), state)
        state = output.state
        outputs.append(output.y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), layer(x, context(300, rows=2)).y, atol=1e-5, rtol=1e-5)


def test_the_state_is_as_large_after_a_thousand_positions_as_after_one() -> None:
    layer = build()
    sizes = [
        sum(part.numel() for part in state_tensors(layer(noise(1, length, DIM), context(length)).state))
        for length in (1, 1000)
    ]
    assert sizes == [HEADS * (HEAD_DIM**2 + HEAD_DIM)] * 2


def test_the_state_keeps_nothing_else_alive() -> None:
    state = build(chunk_length=8)(noise(1, 1000, DIM), context(1000)).state
    assert all(part.untyped_storage().nbytes() <= 8 * HEADS * (HEAD_DIM**2 + HEAD_DIM) for part in state.values())


def test_the_state_is_plain_data_for_a_checkpoint() -> None:
    state, file = detach(build()(noise(1, 4, DIM), context(4)).state), BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=True), state)


def test_reading_on_leaves_the_state_that_was_read_as_it_was() -> None:
    """A beam search continues from one state in several ways."""
    layer = build()
    with torch.no_grad():
        state = layer(noise(1, 4, DIM), context(4)).state
        before, step = map_state(Tensor.clone, state), noise(1, 1, DIM)
        first, second = (layer(step, context(1), state).y for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(state[name], before[name]) for name in ("products", "features"))


def test_padding_adds_nothing_to_the_state() -> None:
    layer, x = build(), noise(1, LENGTH, DIM)
    padding_mask = torch.tensor([[True, False, True, True, False, False, True]])
    padded, unpadded = (
        layer(x * 50, context(padding_mask=padding_mask)).state,
        layer(x[:, padding_mask[0]] * 50, context(4)).state,
    )
    torch.testing.assert_close(padded, unpadded, atol=1e-9, rtol=1e-12)


def test_no_tensor_kept_for_the_backward_pass_has_a_matrix_for_every_position() -> None:
    dim, length = 64, 2048
    layer, sizes = LinearConfig().build(Shape(dim, 1, length)), []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(1, length, dim), context(length))
    assert max(sizes) <= length * (dim + 1) + dim * (dim + 1)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_sums_are_in_single_precision_where_all_else_is_in_half(half: torch.dtype) -> None:
    layer, x = build().float(), torch.randn(1, LENGTH, DIM)
    with torch.autocast("cpu", dtype=half):
        autocast_state = layer(x, context()).state
    half_output = layer.to(half)(x.to(half), context())
    assert half_output.y.dtype == half
    assert {part.dtype for part in state_tensors((autocast_state, half_output.state))} == {torch.float32}


def test_sums_under_autocast_are_those_of_the_rounded_keys_and_values_and_not_rounded_again() -> None:
    layer, x = build().float(), torch.randn(1, 500, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = layer(x, context(500)).state
        k, v = (linear(x).double().unflatten(-1, (HEADS, HEAD_DIM)) for linear in (layer.key, layer.value))
    k = FEATURE_MAPS["elu"].apply(k)
    torch.testing.assert_close(sums["features"].double(), k.sum(dim=1), atol=0, rtol=1e-5)
    torch.testing.assert_close(sums["products"].double(), torch.einsum("bshf,bshk->bhfk", k, v), atol=1e-3, rtol=1e-5)


def test_a_mean_of_many_equal_keys_does_not_stall_in_half_precision() -> None:
    """In bfloat16 a sum of ones stops at 256."""
    layer = LinearConfig(bias=True).build(Shape(1, 1, 4096))
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    x = torch.cat([torch.ones(1, 1024, 1), torch.full((1, 3072, 1), -1.0)], dim=1)
    exact = layer.double()(x.double(), context(4096)).y[:, -1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer.float()(x, context(4096)).y[:, -1]
    torch.testing.assert_close(y.double(), exact, atol=0, rtol=0.01)


def test_elu_plus_one_is_not_rounded_to_zero_where_it_is_small() -> None:
    x = torch.tensor([-80.0, -30.0, -17.0, -1.0, 0.0, 0.5, 2.0], requires_grad=True)
    y = FEATURE_MAPS["elu"].apply(x)
    torch.testing.assert_close(y, torch.where(x > 0, x + 1, x.exp()), atol=0, rtol=1e-6)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.where(x > 0, torch.ones(()), x.exp()).detach(), atol=0, rtol=1e-6)


@features
@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_keys_far_from_zero_give_finite_outputs_and_gradients(name: Features, size: float) -> None:
    layer = LinearConfig(features=name).build(Shape(4, 1, 5))
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    x = torch.full((1, 5, 4), size, requires_grad=True)
    y = layer(x, context(5)).y
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_the_products_of_two_channels_have_the_square_of_the_product_of_keys() -> None:
    polynomial, (q, k) = FEATURE_MAPS["polynomial"], noise(2, 5)
    assert len(polynomial.apply(q)) == polynomial.channels(5) == 15
    torch.testing.assert_close(polynomial.apply(q) @ polynomial.apply(k), (q @ k) ** 2)


@features
def test_the_channels_of_a_feature_map_are_as_many_as_it_says(name: Features) -> None:
    assert FEATURE_MAPS[name].apply(noise(2, 3, 5)).shape == (2, 3, FEATURE_MAPS[name].channels(5))


@pytest.mark.parametrize("causal", [True, False])
def test_twice_the_length_costs_twice_as_much(causal: bool) -> None:
    layer = build(chunk_length=8)
    assert layer.flops(128, 0, causal) == 2 * layer.flops(64, 0, causal)


def test_the_cost_of_a_model_is_found_without_computing_it() -> None:
    config = LanguageModelConfig(dim=8, heads=2, depth=3, mixer=LinearConfig())
    floats = 2 * (4 * 4 + 4)
    assert cost(config, probe_data(11, 50), 50).state_bytes == 3 * floats * 4


def test_the_default_eps_does_not_show_in_single_precision_and_keeps_gradients_finite() -> None:
    """The smallest denominator of a model as it starts is that of a first token, whose 64 features are near 1."""
    shape, x, ctx = Shape(512, 8, 16), torch.randn(1, 9, 512), Context(torch.arange(9)[None], True)
    without_eps, layer = LinearConfig(eps=1e-30).build(shape), LinearConfig().build(shape)
    for part in (layer.query, layer.key):
        nn.init.zeros_(part.weight)
    without_eps.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x, ctx).y, without_eps(x, ctx).y)
    zero_features = LinearConfig(features="relu").build(shape)
    zero_features.query.weight.data = -zero_features.key.weight.data.abs()  # no feature of these queries is above zero
    zero_features(x.abs().requires_grad_(), ctx).y.sum().backward()
    assert all(p.grad is not None and p.grad.square().sum().isfinite() for p in zero_features.parameters())
