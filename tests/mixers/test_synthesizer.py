"""Synthesizers equal their equations, written out for one query and one head at a time; lengths, padding, mixtures."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, LengthError, Shape
from lit_transformers.mixers import AttentionConfig, SynthesizerConfig
from lit_transformers.mixers.synthesizer.logits import (
    Dense,
    DotProduct,
    FactorisedDense,
    FactorisedRandom,
    Logits,
    PerHead,
    Random,
)
from lit_transformers.mixers.synthesizer.synthesizer import Synthesizer

DIM, HEADS, HEAD_DIM, LENGTH = 6, 2, 3, 12
MEMBERS = ("dense", "random", "fixed_random", "factorised_dense", "factorised_random")
SHAPE = Shape(DIM, HEADS, LENGTH)
LONG = 300
MIXTURE = ("factorised_dense", "random", "dense", "dot_product")

each_member = pytest.mark.parametrize("member", MEMBERS)
both_ways = pytest.mark.parametrize("causal", [True, False])


def build(*members: str, shape: Shape = SHAPE, **knobs: Any) -> Synthesizer:
    torch.manual_seed(0)
    config = SynthesizerConfig.from_dict({"members": list(members), **knobs})
    layer = config.build(shape).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def context(length: int = LENGTH, causal: bool = True, rows: int = 1, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length).expand(rows, length), causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def logit(logits: nn.Module, x: Tensor, head: int, i: int, j: int) -> Tensor:
    """The logit of one member for query i and key j of x (t, d)."""
    match logits:
        case Dense():
            return of_head(logits.out, hidden(logits.hidden, x[i], head), head)[j]
        case FactorisedDense():
            inner = hidden(logits.hidden, x[i], head)
            first, second = of_head(logits.slow, inner, head), of_head(logits.fast, inner, head)
            return first.repeat_interleave(len(second))[j] * second.repeat(len(first))[j]
        case Random():
            return logits.weight[min(head, len(logits.weight) - 1), i, j]
        case FactorisedRandom():
            weight_index = min(head, len(logits.left) - 1)
            return logits.left[weight_index, i] @ logits.right[weight_index, j]
        case DotProduct():
            rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            return (logits.query.weight[rows] @ x[i]) @ (logits.key.weight[rows] @ x[j]) / HEAD_DIM**0.5
    raise TypeError(type(logits).__name__)


def hidden(linear: nn.Linear, x: Tensor, head: int) -> Tensor:
    rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
    return (linear.weight[rows] @ x + linear.bias[rows]).clamp(min=0)


def of_head(linear: PerHead, x: Tensor, head: int) -> Tensor:
    return linear.weight[head] @ x + linear.bias[head, 0]


def oracle(layer: Synthesizer, x: Tensor, causal: bool) -> Tensor:
    """softmax(sum of alpha S) V of one sequence x (t, d)."""
    outputs = []
    for head in range(HEADS):
        values = x @ layer.value.weight[head * HEAD_DIM : (head + 1) * HEAD_DIM].T
        head_outputs = []
        for i in range(len(x)):
            visible_keys = range(i + 1 if causal else len(x))
            mixture_weights = torch.ones(1) if layer.mixture is None else layer.mixture[:, head].exp()
            scores = [
                sum(
                    mixture_weight / mixture_weights.sum() * logit(member, x, head, i, j)
                    for mixture_weight, member in zip(mixture_weights, layer.logits, strict=True)
                )
                for j in visible_keys
            ]
            head_outputs.append(
                torch.stack([torch.as_tensor(score) for score in scores]).softmax(dim=0) @ values[: len(visible_keys)]
            )
        outputs.append(torch.stack(head_outputs))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


@both_ways
@pytest.mark.parametrize("length", [1, 7, LENGTH])
@pytest.mark.parametrize(
    ("members", "knobs"),
    [
        *(((member,), {}) for member in MEMBERS),
        (("random",), {"per_head": False}),
        (("factorised_random",), {"per_head": False, "rank": 2}),
        (("factorised_dense",), {"factor": 6}),
        (("factorised_dense",), {"factor": 1}),
        (("random", "dense"), {}),
        (("random", "dot_product"), {}),
        (("factorised_dense", "factorised_random", "dense", "fixed_random", "dot_product"), {}),
    ],
    ids=str,
)
def test_outputs_and_gradients_equal_the_equations(
    members: tuple[str, ...], knobs: dict[str, Any], length: int, causal: bool
) -> None:
    layer, x = build(*members, **knobs), noise(1, length, DIM).requires_grad_()
    ours, expected = layer(x, context(length, causal)).y[0], oracle(layer, x[0], causal)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)
    direction, leaves = torch.randn_like(ours), [x, *layer.parameters()]
    gradients = (torch.autograd.grad((y * direction).sum(), leaves, materialize_grads=True) for y in (ours, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("padded", [False, True])
@both_ways
@pytest.mark.parametrize("members", [*((member,) for member in MEMBERS), MIXTURE], ids=str)
def test_blocks_of_a_long_sequence_give_what_the_whole_gives(
    members: tuple[str, ...], causal: bool, padded: bool
) -> None:
    """Also where all rows of a batch have the same weights, and where padding tells them apart."""
    layer = build(*members, shape=SHAPE._replace(max_length=LONG + 3))
    x, padding_mask = noise(2, LONG, DIM).requires_grad_(), torch.arange(LONG) < torch.tensor([[LONG], [LONG - 9]])
    ctx = context(LONG, causal, 2, padding_mask if padded else None)
    real = padding_mask if padded else torch.ones_like(padding_mask)
    ours, expected = layer(x, ctx).y[real], whole(layer, x, causal, real)[real]
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)
    direction, leaves = torch.randn_like(ours), [x, *layer.parameters()]
    gradients = (torch.autograd.grad((y * direction).sum(), leaves) for y in (ours, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-8)


def whole(layer: Synthesizer, x: Tensor, causal: bool, real: Tensor) -> Tensor:
    """The outputs, computed with the whole matrices of all members."""
    matrices = [member(x) for member in layer.logits]
    shares = torch.ones(1, HEADS) if layer.mixture is None else layer.mixture.softmax(dim=0)
    scores = sum(share[:, None, None] * matrix for share, matrix in zip(shares.to(x), matrices, strict=True))
    assert isinstance(scores, Tensor)
    visible = torch.ones(x.size(1), x.size(1), dtype=torch.bool)
    visible = (visible.tril() if causal else visible) & real[:, None, None]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    values = layer.value(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    y: Tensor = layer.merge((weights @ values).transpose(1, 2).flatten(2))
    return y


@pytest.mark.parametrize("members", [(member,) for member in MEMBERS] + [("dense", "factorised_random", "dot_product")])
def test_gradients_are_those_of_differences(members: tuple[str, ...]) -> None:
    layer, padding_mask = build(*members), torch.arange(5) < torch.tensor([[5], [3]])
    x = noise(2, 5, DIM).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, context(5, True, 2, padding_mask)).y, x)


@pytest.mark.parametrize(("length", "factor"), [(12, None), (12, 2), (12, 6), (12, 4), (12, 12), (9, 3), (9, None)])
def test_the_two_factors_meet_in_every_pair_once(length: int, factor: int | None) -> None:
    """With both tiled the same way, some pairs would stand at several positions and others at none."""
    logits, slow, fast = logits_of_constants(length, factor)
    assert torch.equal(logits, slow.repeat_interleave(len(fast)) * fast.repeat(len(slow)))
    assert sorted(logits.tolist()) == sorted(a * b for a, b in product(slow.tolist(), fast.tolist()))


@pytest.mark.parametrize(
    ("length", "factor", "sizes"), [(7, None, (3, 3)), (12, 5, (4, 3)), (5, 4, (3, 2)), (5, 9, (5, 1))]
)
def test_where_a_factor_does_not_divide_the_length_no_pair_comes_twice_and_no_item_is_idle(
    length: int, factor: int | None, sizes: tuple[int, int]
) -> None:
    logits, slow, fast = logits_of_constants(length, factor)
    assert (len(slow), len(fast)) == sizes
    assert len(set(logits.tolist())) == length
    assert all((logits / entry).frac().eq(0).any() for entry in (*slow, *fast))


def logits_of_constants(length: int, factor: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of any query of the first head where A and B are different primes; and these."""
    layer = build("factorised_dense", shape=SHAPE._replace(max_length=length), factor=factor)
    (logits,) = layer.logits
    assert isinstance(logits, FactorisedDense)
    primes = torch.tensor([n for n in range(2, 200) if all(n % m for m in range(2, n))], dtype=torch.float64)
    counts = [part.bias.size(-1) for part in (logits.slow, logits.fast)]
    slow, fast = primes[: sum(counts)].split(counts)
    with torch.no_grad():
        for part, constant in ((logits.slow, slow), (logits.fast, fast)):
            part.weight.zero_()
            part.bias.copy_(constant)
    return logits(noise(1, length, DIM))[0, 0, 0], slow, fast


@each_member
def test_a_prefix_says_what_it_said_as_part_of_the_whole(member: str) -> None:
    """A decoder would take the last row of the prefix at its step."""
    layer, x = build(member), noise(1, LENGTH, DIM)
    expected = layer(x, context()).y
    for length in range(1, LENGTH):
        torch.testing.assert_close(layer(x[:, :length], context(length)).y, expected[:, :length], atol=1e-11, rtol=1e-9)


@each_member
def test_a_longer_sequence_is_an_error_that_says_how_long_it_may_be(member: str) -> None:
    with pytest.raises(LengthError, match="built for 12 positions and reads no 13"):
        build(member)(noise(1, LENGTH + 1, DIM), context(LENGTH + 1))


@both_ways
@each_member
def test_padding_within_a_row_is_not_seen(member: str, causal: bool) -> None:
    """Where logits belong to places, a row with holes is no shorter row: only their keys are hidden."""
    layer, x = build(member), noise(1, 6, DIM)
    padding_mask = torch.tensor([[True, False, True, True, False, True]])
    y, y_changed = (
        layer(z, context(6, causal, padding_mask=padding_mask)).y[padding_mask]
        for z in (x, x.where(padding_mask[..., None], noise(1, 6, DIM)))
    )
    torch.testing.assert_close(y, y_changed, atol=1e-12, rtol=1e-10)
    assert (y - layer(x, context(6, causal)).y[padding_mask]).abs().max() > 1e-3


@pytest.mark.parametrize("head_dim", [1, 4, 16])
def test_synthetic_logits_are_not_divided_by_the_root_of_the_channels(head_dim: int) -> None:
    logits = Random(SHAPE, HEADS, fixed=False)
    layer = build("random", head_dim=head_dim)
    layer.logits[0].load_state_dict(logits.state_dict())
    torch.testing.assert_close(layer.logits[0](noise(1, LENGTH, DIM))[0], logits.weight.double())


def test_across_two_sequences_it_is_refused_and_dot_products_are_pointed_to() -> None:
    with pytest.raises(ConfigError, match=r"Synthesizer cannot be cross: .* cross-attention stays one of dot products"):
        SynthesizerConfig().require("cross")


def test_it_promises_no_stream_and_returns_no_state() -> None:
    assert not SynthesizerConfig().promises().streams
    assert build("dense")(noise(1, 3, DIM), context(3)).state is None


@both_ways
def test_a_mixture_that_is_all_dot_products_is_plain_attention(causal: bool) -> None:
    layer, attention = build("random", "dot_product"), AttentionConfig().build(SHAPE).double()
    with torch.no_grad():
        assert layer.mixture is not None
        layer.mixture.copy_(torch.tensor([[-1e3], [0.0]]))
    for part in ("value", "merge"):
        attention.get_submodule(part).load_state_dict(layer.get_submodule(part).state_dict())
    for part in ("query", "key"):
        attention.get_submodule(part).load_state_dict(layer.logits[1].get_submodule(part).state_dict())
    x, padding_mask = noise(2, LENGTH, DIM), torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])
    ctx = context(LENGTH, causal, 2, padding_mask)
    torch.testing.assert_close(layer(x, ctx).y[padding_mask], attention(x, ctx).y[padding_mask], atol=1e-12, rtol=1e-10)


def test_the_shares_of_a_mixture_start_equal_for_every_head() -> None:
    torch.manual_seed(0)
    layer, x = SynthesizerConfig(members=("random", "fixed_random")).build(SHAPE), torch.randn(1, LENGTH, DIM)
    single, ctx = SynthesizerConfig(members=("random",)).build(SHAPE), context()
    with torch.no_grad():
        first_logits, second_logits = (member(x)[0] for member in layer.logits)
        single.logits[0].weight.copy_((first_logits + second_logits) / 2)
    for part in ("value", "merge"):
        single.get_submodule(part).load_state_dict(layer.get_submodule(part).state_dict())
    torch.testing.assert_close(layer(x, ctx).y, single(x, ctx).y)


def test_a_fixed_matrix_is_kept_with_the_weights_and_does_not_learn() -> None:
    layer = build("fixed_random")
    assert "logits.0.weight" in layer.state_dict()
    assert "logits.0.weight" not in dict(layer.named_parameters())


@pytest.mark.parametrize("member", ["random", "fixed_random", "factorised_random"])
def test_random_logits_start_with_variance_one(member: str) -> None:
    torch.manual_seed(0)
    layer = SynthesizerConfig.from_dict({"members": [member]}).build(Shape(8, 4, 200))
    assert layer.logits[0](torch.zeros(1, 200, 8)).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("members", "weights"),
    [
        (("dense",), DIM**2 + DIM * LENGTH),
        (("factorised_dense",), DIM**2 + DIM * (4 + 3)),
        (("random",), HEADS * LENGTH**2),
        (("fixed_random",), 0),
        (("factorised_random",), HEADS * 2 * LENGTH * 8),
        (("random", "dot_product"), HEADS * LENGTH**2 + 2 * DIM**2),
    ],
    ids=str,
)
def test_members_have_the_weights_of_their_formulas_and_no_more(members: tuple[str, ...], weights: int) -> None:
    """Of all heads; without biases and shares of a mixture."""
    layer = build(*members)
    sizes = [p.numel() for name, p in layer.named_parameters() if name.startswith("logits") and "bias" not in name]
    assert sum(sizes) == weights


def test_rows_of_a_batch_are_dropped_out_apart_though_they_have_one_matrix() -> None:
    layer, x = build("random", dropout=0.5).train(), noise(1, LENGTH, DIM).expand(2, -1, -1)
    first_row, second_row = layer(x, context(rows=2)).y
    assert not torch.equal(first_row, second_row)
    first_row, second_row = layer.eval()(x, context(rows=2)).y
    assert torch.equal(first_row, second_row)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"members": ()}, "logits must be synthesised from something"),
        ({"members": ("dot_product",)}, "dot products alone are kind: attention"),
        ({"members": ("dense", "dense")}, "members names one twice"),
        ({"members": ("sparse",)}, r"members\.0: "),
        ({"factor": 4}, "factor is of factorised_dense, which is no member; drop it"),
        ({"rank": 4}, "rank is of factorised_random, which is no member; drop it"),
        ({"per_head": False}, "per_head is of random matrices, and no member has one; drop it"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SynthesizerConfig(**fields)


@pytest.mark.parametrize("members", [("random",), ("dense",), ("factorised_dense", "dot_product")])
def test_every_member_says_its_logits_in_the_shape_it_promises(members: tuple[str, ...]) -> None:
    for logits in build(*members).logits:
        assert isinstance(logits, Logits)
        rows, heads, *square = logits(noise(2, 5, DIM)).shape
        assert rows in (1, 2) and heads == HEADS and square == [5, 5]
