"""A star equals its algorithm written token by token, with any links and any padding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.attention import recompute
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import StarConfig
from lit_transformers.mixers.star import Projected, Star
from lit_transformers.stacks.block import BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS = 6, 2
CASES = {
    "cyclic": StarConfig(cycles=3),
    "zero": StarConfig(cycles=3, boundary="zero", bias=True),
    "masked": StarConfig(cycles=2, boundary="masked"),
    "shared": StarConfig(cycles=3, shared=True),
    "no ring": StarConfig(ring=False),
    "no relay": StarConfig(radial=False, cycles=3),
    "no inputs": StarConfig(inputs=False),
    "one cycle": StarConfig(cycles=1),
}
every_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES)
KEEPS = [[True], [True] * 2, [True] * 6, [False, True, True, False, True, False, True], [False, True, False]]


def layer(config: StarConfig) -> Star:
    torch.manual_seed(0)
    mixer = config.build(Shape(DIM, HEADS, 16)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def context(x: Tensor, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(x.size(1)).expand(x.size(0), -1), False, padding_mask)


def multi_attention(attention: nn.Module, query: Tensor, visible_states: list[Tensor | None]) -> Tensor:
    """LN(ReLU(MultiAtt(query, visible_states))); None is a neighbour whose key and value are zeros."""
    assert isinstance(attention, Projected)
    heads, width = attention.heads, DIM // attention.heads
    q = attention.query(query).view(heads, width)
    keys, values = (
        [
            torch.zeros(heads, width, dtype=q.dtype) if x is None else linear(x).view(heads, width)
            for x in visible_states
        ]
        for linear in (attention.key, attention.value)
    )
    head_outputs = []
    for head in range(heads):
        scores = torch.stack([q[head] @ k[head] / math.sqrt(width) for k in keys]).softmax(dim=0)
        head_outputs.append(sum(weight * v[head] for weight, v in zip(scores, values, strict=True)))
    return attention.norm(attention.merge(torch.cat([torch.as_tensor(y) for y in head_outputs])).relu())


def star(mixer: Star, config: StarConfig, tokens: list[Tensor]) -> Tensor:
    """Algorithm 1 of arXiv:1902.09113 for the real tokens of one sequence, one at a time."""
    satellites, relay, last = list(tokens), torch.stack(tokens).mean(dim=0), len(tokens) - 1
    for cycle in range(config.cycles):
        updated = []
        for i, state in enumerate(satellites):
            visible_states: list[Tensor | None] = [state]
            if config.ring:
                for neighbour in (i - 1, i + 1):
                    if 0 <= neighbour <= last or config.boundary == "cyclic":
                        visible_states.append(satellites[neighbour % len(tokens)])
                    elif config.boundary == "zero":
                        visible_states.append(None)
            if config.inputs:
                visible_states.append(tokens[i])
            if config.radial:
                visible_states.append(relay)
            updated.append(multi_attention(mixer.satellites[0 if config.shared else cycle], state, visible_states))
        satellites = updated
        if config.radial and cycle < config.cycles - 1:
            relay = multi_attention(mixer.relays[0 if config.shared else cycle], relay, [relay, *satellites])
    return torch.stack(satellites)


@every_case
@pytest.mark.parametrize("kept", KEEPS, ids=str)
def test_a_star_equals_its_algorithm_among_the_real_tokens(config: StarConfig, kept: list[bool]) -> None:
    """Forward and gradients; padding is no neighbour, and takes no part in the relay (T-ST1, T-ST2, T-ST4)."""
    mixer, x = layer(config), torch.randn(1, len(kept), DIM, dtype=torch.float64, requires_grad=True)
    ours = mixer(x, context(x, torch.tensor([kept]))).y[0][kept]
    expected = star(mixer, config, [token for token, is_real in zip(x[0], kept, strict=True) if is_real])
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-11)
    direction = torch.randn_like(ours)
    leaves = [x, *mixer.parameters()]
    gradients, expected_gradients = (
        torch.autograd.grad((y * direction).sum(), leaves, retain_graph=True, materialize_grads=True)
        for y in (ours, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)


@every_case
def test_pieces_of_a_long_row_are_what_it_is_at_once(config: StarConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, x = layer(config), torch.randn(2, 7, DIM, dtype=torch.float64, requires_grad=True)
    results = []
    for channels in (2**19, 2 * 3 * DIM):
        monkeypatch.setitem(recompute.CHANNELS, "cpu", channels)
        y = mixer(x, context(x, torch.tensor([[False, *[True] * 6], [True] * 7]))).y
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])))
    torch.testing.assert_close(*results, atol=1e-9, rtol=1e-9)


def test_the_ends_of_a_ring_see_each_other_alone_where_it_is_cyclic() -> None:
    """fastNLP pads with zeros, the paper closes the ring (T-ST1)."""
    visible_positions = {}
    for boundary in ("cyclic", "zero", "masked"):
        x = torch.randn(1, 6, DIM, dtype=torch.float64, requires_grad=True)
        y = layer(StarConfig(cycles=1, radial=False).override({"boundary": boundary}))(x, context(x)).y
        (gradient,) = torch.autograd.grad(y[0, 0].square().sum(), x)
        visible_positions[boundary] = gradient[0].abs().amax(-1).nonzero()[:, 0].tolist()
    assert visible_positions == {"cyclic": [0, 1, 5], "zero": [0, 1], "masked": [0, 1]}


def test_a_neighbour_of_zeros_still_takes_its_share_of_attention() -> None:
    x = torch.randn(1, 5, DIM, dtype=torch.float64)
    zero, masked = (
        layer(StarConfig(cycles=1).override({"boundary": boundary}))(x, context(x)).y for boundary in ("zero", "masked")
    )
    torch.testing.assert_close(zero[:, 1:-1], masked[:, 1:-1], atol=1e-12, rtol=1e-12)
    assert (zero[:, [0, -1]] - masked[:, [0, -1]]).abs().amax(-1).min() > 1e-4


def test_without_a_relay_a_token_reaches_as_many_neighbours_as_there_are_cycles() -> None:
    x = torch.randn(16, 11, DIM, dtype=torch.float64, requires_grad=True)  # a ReLU may hide a neighbour in some rows
    for cycles in (1, 2, 3):
        y = layer(StarConfig(cycles=cycles, radial=False, boundary="masked"))(x, context(x)).y
        (gradient,) = torch.autograd.grad((y[:, 5] * torch.randn(16, DIM)).sum(), x)
        assert gradient.abs().amax((0, -1)).nonzero()[:, 0].tolist() == list(range(5 - cycles, 6 + cycles))


def test_nothing_of_a_token_goes_around_its_attention() -> None:
    """T-ST3: with every value a zero, no residual carries anything on."""
    mixer = layer(StarConfig())
    for part in mixer.satellites:
        assert isinstance(part, Projected)
        nn.init.zeros_(part.value.weight)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    y = mixer(x, context(x)).y
    assert torch.equal(y, y[:1, :1].expand_as(y))


def test_cycles_own_their_weights_or_share_them_and_none_is_idle() -> None:
    def module_counts(config: StarConfig) -> tuple[int, int]:
        mixer = layer(config)
        return len(mixer.satellites), len(mixer.relays)

    assert module_counts(StarConfig(cycles=3)) == (3, 2), "nobody would read the last relay"
    assert module_counts(StarConfig(cycles=3, shared=True)) == (1, 1)
    assert module_counts(StarConfig(cycles=3, radial=False)) == (3, 0)


def test_a_star_is_no_decoder() -> None:
    with pytest.raises(ConfigError, match="Star cannot be causal: every token sees its next neighbour, or a relay"):
        StarConfig().require("causal")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ring": False, "radial": False}, "without ring and radial links no token sees another"),
        ({"ring": False, "boundary": "zero"}, "without a ring there is no boundary"),
        ({"shared": True, "cycles": 1}, "one cycle has nothing to share with"),
    ],
)
def test_links_that_cannot_be_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        StarConfig.from_dict(fields)


@pytest.mark.slow
@pytest.mark.parametrize(("radial", "solves"), [(True, True), (False, False)])
def test_masked_summation_needs_the_relay(radial: bool, solves: bool) -> None:
    """T-ST5, the paper's section 4.1: the sum of the marked vectors of a sequence, read at its first token, which
    without a relay reads five of the twelve."""
    torch.manual_seed(0)
    length, marked_count, dim = 12, 4, 16
    block = BlockConfig(mixer=StarConfig(cycles=2, radial=radial), feedforward=FeedForwardConfig(width=32))
    network = block.build_block(Shape(dim, 2, length), "bidirectional")
    embed, readout = nn.Linear(3, dim), nn.Linear(dim, 2)
    parts = nn.ModuleList([network, embed, readout])
    optimizer = torch.optim.Adam(parts.parameters(), 5e-3)
    ctx = Context(torch.arange(length).expand(64, length), False)
    losses = []
    for _ in range(250):
        values = torch.rand(64, length, 2)
        mask = torch.rand(64, length).argsort(dim=1) < marked_count
        target = (values * mask[..., None]).sum(dim=1)
        predicted = readout(network(embed(torch.cat([values, mask[..., None]], dim=-1)), ctx).y[:, 0])
        loss = (predicted - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    variance = marked_count / 12
    assert (sum(losses[-50:]) / 50 < variance / 3) == solves
