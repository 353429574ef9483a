"""The sliding window sees the keys of its paper, in the window and everywhere, at every length and dilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from slow_patterns import (
    DIM,
    HEADS,
    Sees,
    agree,
    build,
    context,
    head_output,
    heads_output,
    leaves,
    merged,
    noise,
    same,
    uniform_weights,
    weights,
)
from torch import Tensor

from lit_transformers.attention import executors
from lit_transformers.attention.executors import Inputs, attend, dense
from lit_transformers.attention.patterns import Band, GlobalQueries
from lit_transformers.config import ConfigError
from lit_transformers.encodings import EncodingConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Shape
from lit_transformers.mixers import AttentionConfig, WindowConfig
from lit_transformers.mixers.window import Window, window_of
from lit_transformers.models import EncoderConfig

both_ways = pytest.mark.parametrize("causal", [True, False])
every_encoding = pytest.mark.parametrize(
    "encoding", [None, RotaryConfig(), XLConfig(), ShawConfig(distance=2)], ids=lambda e: e.kind if e else "none"
)


def sees(window: int, dilations: Sequence[int], causal: bool, is_global: Callable[[int], bool]) -> Sees:
    """Section 3.1: the window of each head; a global token sees everything and is seen from everywhere."""

    def is_visible(h: int, i: int, j: int) -> bool:
        d = dilations[h]
        in_window = abs(i - j) <= window * d and (i - j) % d == 0
        return (in_window or is_global(i) or is_global(j)) and (j <= i or not causal)

    return is_visible


KNOBS: dict[str, tuple[dict[str, Any], list[int], Callable[[int], bool]]] = {
    "window": ({}, [1, 1], lambda j: False),
    "dilated": ({"dilation": 3}, [3, 3], lambda j: False),
    "one dilated head": ({"dilation": 2, "dilated_heads": 1}, [1, 2], lambda j: False),
    "first": ({"global_tokens": "first", "global_count": 2}, [1, 1], lambda j: j < 2),
    "periodic": ({"global_tokens": "periodic", "global_count": 4}, [1, 1], lambda j: j % 4 == 0),
    "marked": ({"global_tokens": "marked"}, [1, 1], lambda j: j in (3, 7)),
    "dilated and periodic": (
        {"dilation": 2, "dilated_heads": 1, "global_tokens": "periodic", "global_count": 5},
        [1, 2],
        lambda j: j % 5 == 0,
    ),
}
every_knob = pytest.mark.parametrize("name", KNOBS)


def marks(name: str, length: int) -> Tensor | None:
    """The marks in the data, if there are any."""
    return torch.tensor([[KNOBS[name][2](j) for j in range(length)]]) if name == "marked" else None


@every_knob
@both_ways
@pytest.mark.parametrize("length", [1, 2, 11])
@pytest.mark.parametrize("projections", ["shared", "separate"])
def test_a_query_sees_its_window_and_global_tokens_and_counts_none_of_them_twice(
    name: str, causal: bool, length: int, projections: str
) -> None:
    """T-LF2, and T-LF7: at both ends there are fewer keys, and nothing replaces the missing ones."""
    knobs, dilations, is_global = KNOBS[name]
    if projections == "separate" and "global_tokens" not in knobs:
        knobs = {**knobs, "global_tokens": "first", "global_count": 1}
        is_global = lambda j: j == 0  # noqa: E731
    config = WindowConfig(window=2, global_projections=projections, **knobs)
    attention_weights = weights(config, length, causal, marked=marks(name, length))
    same(attention_weights, uniform_weights(sees(2, dilations, causal, is_global), length, length))


@every_knob
@pytest.mark.parametrize("memory", [1, 2, 9])
def test_with_memory_shorter_or_longer_than_the_window_a_query_sees_what_of_it_is_remembered(
    name: str, memory: int
) -> None:
    knobs, dilations, is_global = KNOBS[name]
    config, before, length = WindowConfig(window=3, memory=memory, **knobs), 6, 5
    memory_length = min(memory, before)
    attention_weights = weights(config, length, True, before=before, marked=marks(name, before + length))
    by_position = sees(3, dilations, True, is_global)
    same(
        attention_weights,
        uniform_weights(
            lambda h, i, j: by_position(h, i + before - memory_length, j + before - memory_length),
            length,
            length + memory_length,
        ),
    )


@both_ways
@pytest.mark.parametrize("window", [1, 3])
def test_the_declared_pattern_is_the_one_that_gradients_show(causal: bool, window: int) -> None:
    config = WindowConfig(window=window, dilation=2, dilated_heads=1)
    visible = weights(config, 9, causal) > 0
    i, j = torch.arange(9)[:, None], torch.arange(9)
    for head, pattern in enumerate(build(config).patterns(causal, None)):
        assert torch.equal(visible[head], pattern.sees(torch.zeros(()), torch.zeros(()), i, j))


def test_window_counts_the_keys_of_one_side() -> None:
    """T-LF1: 2 w + 1 keys where both sides are seen, w + 1 where the past alone is."""
    both_sides, past_side = (weights(WindowConfig(window=3), 15, causal)[0, 7] for causal in (False, True))
    assert (both_sides > 0).sum() == 7 and (past_side > 0).sum() == 4


def test_dilation_is_the_distance_of_neighbouring_keys_and_one_is_none() -> None:
    """T-LF5: the paper's tables write 0 where there is none."""
    undilated, dilated = (weights(WindowConfig(window=2, dilation=dilation), 9, True)[0, 8] for dilation in (1, 2))
    assert undilated.nonzero().squeeze(1).tolist() == [6, 7, 8]
    assert dilated.nonzero().squeeze(1).tolist() == [4, 6, 8]


@both_ways
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["window", "dilated", "one dilated head"])
def test_outputs_and_gradients_are_those_of_the_paper(name: str, causal: bool, bias: bool) -> None:
    """T-LF6: relative positions under dilation are true distances. T-LF4: dilated and causal at once."""
    knobs, dilations, is_global = KNOBS[name]
    config = WindowConfig(window=2, bias=bias, encoding=ShawConfig(distance=3), **knobs)
    mixer, x = build(config), noise(1, 10, DIM).requires_grad_()
    expected = merged(mixer, heads_output(mixer, x[0], sees(2, dilations, causal, is_global)))
    agree(mixer(x, context(10, causal)).y[0], expected, leaves(mixer, x))


@both_ways
@pytest.mark.parametrize("name", ["first", "periodic", "marked", "dilated and periodic"])
@pytest.mark.parametrize("projections", ["shared", "separate"])
@pytest.mark.parametrize("encoding", [None, ShawConfig(distance=3)], ids=["none", "shaw"])
def test_global_tokens_ask_and_read_by_projections_of_their_own_and_are_seen_by_the_common_ones(
    name: str, causal: bool, projections: str, encoding: EncodingConfig | None
) -> None:
    """T-LF3: the output of a global token comes from Q_g, K_g, V_g alone and replaces the output of its window; queries
    that see it use Q, K and V."""
    knobs, dilations, is_global = KNOBS[name]
    config = WindowConfig(window=2, bias=True, encoding=encoding, global_projections=projections, **knobs)
    mixer, x, length = build(config), noise(1, 9, DIM).requires_grad_(), 9
    linears = list(mixer.global_maps) or [mixer.query, mixer.key, mixer.value]
    local_output = heads_output(mixer, x[0], sees(2, dilations, causal, is_global))
    global_output = torch.stack(
        [
            torch.cat(
                [
                    head_output(mixer, linears, x[0], h, i, list(range(i + 1 if causal else length)))
                    for h in range(HEADS)
                ]
            )
            for i in range(length)
        ]
    )
    is_global_token = torch.tensor([is_global(i) for i in range(length)])[:, None]
    expected = merged(mixer, torch.where(is_global_token, global_output, local_output))
    y = mixer(x, context(length, causal, marked=marks(name, length))).y[0]
    agree(y, expected, leaves(mixer, x))


def test_rows_have_global_tokens_of_their_own() -> None:
    mixer, x = build(WindowConfig(window=1, global_tokens="marked", global_projections="separate")), noise(3, 8, DIM)
    marked = torch.zeros(3, 8, dtype=torch.bool)
    marked[0, 2] = marked[1, 5] = marked[1, 6] = True
    y = mixer(x, context(8, causal=False, rows=3, marked=marked)).y
    for index in range(3):
        row = slice(index, index + 1)
        same(y[row], mixer(x[row], context(8, causal=False, marked=marked[row])).y)


def test_a_row_without_marks_is_a_window_alone() -> None:
    unmarked, window_only = build(WindowConfig(window=2, global_tokens="marked")), build(WindowConfig(window=2))
    window_only.load_state_dict(unmarked.state_dict())
    x = noise(2, 7, DIM)
    same(unmarked(x, context(7, rows=2)).y, window_only(x, context(7, rows=2)).y)


def test_a_marked_token_that_is_padding_is_seen_by_none() -> None:
    mixer, x, padding_mask = (
        build(WindowConfig(window=1, global_tokens="marked")),
        noise(1, 8, DIM),
        torch.arange(8)[None] < 6,
    )
    marked = torch.tensor([[False, False, True, False, False, False, False, True]])
    y = mixer(x, context(8, causal=False, padding_mask=padding_mask, marked=marked)).y
    same(y[:, :6], mixer(x[:, :6], context(6, causal=False, marked=marked[:, :6])).y)


@pytest.mark.parametrize("projections", ["shared", "separate"])
@pytest.mark.parametrize("grad", [True, False])
@every_encoding
def test_marks_are_remembered_with_what_they_mark(
    projections: str, grad: bool, encoding: EncodingConfig | None
) -> None:
    config = WindowConfig(
        window=2, memory=12, global_tokens="marked", global_projections=projections, encoding=encoding
    )
    mixer, x, marked = build(config), noise(2, 12, DIM), torch.rand(2, 12) < 0.3
    with torch.set_grad_enabled(grad):
        expected, state, outputs = mixer(x, context(12, rows=2, marked=marked)).y, None, []
        for first, stop in ((0, 5), (5, 6), (6, 12)):
            ctx = context(stop - first, rows=2, start=first, marked=marked[:, first:stop])
            mixed = mixer(x[:, first:stop], ctx, state)
            state = mixed.state
            outputs.append(mixed.y)
    same(torch.cat(outputs, dim=1), expected)


def test_an_encoder_hands_its_marks_to_every_layer() -> None:
    config = EncoderConfig(dim=DIM, heads=HEADS, depth=2, mixer=WindowConfig(window=1, global_tokens="marked"))
    torch.manual_seed(0)
    network, symbols = config.build(probe_data(7, 12)).double(), torch.randint(7, (1, 12))
    marked = torch.arange(12)[None] == 3
    embedded: list[Tensor] = []
    network.stack.register_forward_pre_hook(lambda _, inputs: embedded.append(inputs[0]))
    reach = []
    for inputs in (None, marked):
        hidden = network(symbols, marked=inputs).hidden
        (gradient,) = torch.autograd.grad(hidden[0, 11, 0], embedded[-1])
        reach.append(gradient[0].abs().amax(-1).nonzero().squeeze(1).tolist())
    assert reach == [[9, 10, 11], list(range(12))]


@both_ways
@every_encoding
@pytest.mark.parametrize("window", [9, 50])
def test_a_window_as_long_as_the_sequence_is_dense_attention(
    causal: bool, encoding: EncodingConfig | None, window: int
) -> None:
    ours, attention = build(WindowConfig(window=window, encoding=encoding)), build(AttentionConfig(encoding=encoding))
    attention.load_state_dict(ours.state_dict())
    x, ctx = noise(2, 9, DIM), context(9, causal, rows=2, padding_mask=torch.arange(9) < torch.tensor([[9], [4]]))
    same(ours(x, ctx).y, attention(x, ctx).y)


@both_ways
def test_with_all_tokens_global_a_window_is_dense_attention(causal: bool) -> None:
    ours = build(WindowConfig(window=1, global_tokens="periodic", global_count=1))
    attention = build(AttentionConfig())
    attention.load_state_dict(ours.state_dict())
    x, ctx = noise(2, 9, DIM), context(9, causal, rows=2)
    same(ours(x, ctx).y, attention(x, ctx).y)


@every_encoding
def test_over_segments_a_window_is_dense_attention_of_as_much_memory(encoding: EncodingConfig | None) -> None:
    ours = build(WindowConfig(window=4, memory=4, encoding=encoding))
    attention = build(AttentionConfig(memory=4, same_length=True, encoding=encoding))
    attention.load_state_dict(ours.state_dict())
    states: list[Any] = [None, None]
    for segment in range(3):
        x, outputs = noise(2, 5, DIM), []
        for index, mixer in enumerate((ours, attention)):
            mixed = mixer(x, context(5, rows=2, start=5 * segment), states[index])
            states[index] = mixed.state
            outputs.append(mixed.y)
        same(*outputs)


def windows(config: WindowConfig, depth: int) -> list[int | None]:
    return [window_of(config, Shape(DIM, HEADS, 64, layer, depth)) for layer in range(depth)]


def test_windows_grow_by_equal_factors_shrink_or_stay() -> None:
    growing = WindowConfig(window=64, smallest=4)
    assert windows(growing, 5) == [4, 8, 16, 32, 64]
    assert windows(growing.override({"schedule": "decreasing"}), 5) == [64, 32, 16, 8, 4]
    assert windows(growing.override({"schedule": "fixed"}), 5) == [25] * 5
    assert windows(growing, 1) == [4]
    assert windows(WindowConfig(window=7), 3) == [7] * 3


@both_ways
def test_one_in_so_many_layers_sees_everything_without_dilation(causal: bool) -> None:
    """arXiv:2412.13663, section 2.1.2."""
    config = WindowConfig(window=2, dilation=3, full_every=3)
    assert windows(config, 5) == [None, 2, 2, None, 2]
    full, narrow = (weights(config, 11, causal, layer=layer, depth=5) for layer in (3, 4))
    same(full, uniform_weights(lambda h, i, j: j <= i or not causal, 11, 11))
    same(narrow, uniform_weights(sees(2, [3, 3], causal, lambda j: False), 11, 11))


def test_windows_and_dilations_are_listed_for_each_layer_or_for_runs_of_layers() -> None:
    per_layer = WindowConfig(window=(2, 3, 5), dilation=(1, 2, 4))
    assert windows(per_layer, 3) == [2, 3, 5]
    assert windows(per_layer, 6) == [2, 2, 3, 3, 5, 5]
    built = [per_layer.build(Shape(DIM, HEADS, 64, layer, 6)) for layer in range(6)]
    assert [mixer.dilations for mixer in built] == [[d] * HEADS for d in (1, 1, 2, 2, 4, 4)]
    for indivisible in (WindowConfig(window=(2, 3)), WindowConfig(dilation=(1, 2))):
        with pytest.raises(ConfigError, match="do not divide 3 layers"):
            indivisible.build(Shape(DIM, HEADS, 64, 0, 3))


@pytest.mark.parametrize("schedule", ["increasing", "decreasing"])
def test_a_fixed_window_costs_what_the_schedule_costs(schedule: str) -> None:
    """T-LF9: except for the rounding of the mean to whole keys, and the narrower start of a sequence."""

    def cost(schedule: str) -> int:
        config = WindowConfig(window=256, smallest=16, schedule=schedule)  # type: ignore[arg-type]
        shape = Shape(DIM, HEADS, 8192, depth=5)
        return sum(config.build(shape._replace(layer=layer)).flops(8192, 0) for layer in range(5))

    assert cost("fixed") == pytest.approx(cost(schedule), rel=0.02)


def test_the_last_heads_are_dilated() -> None:
    mixer = WindowConfig(window=2, dilation=3, dilated_heads=2).build(Shape(8, 4, 64))
    assert mixer.dilations == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"smallest": 4, "window": (4, 8)}, "window lists one for each layer"),
        ({"smallest": 200}, "smallest 200 is wider than window 128"),
        ({"schedule": "fixed"}, "needs smallest"),
        ({"global_projections": "separate"}, "global_tokens is none"),
        ({"global_count": 2}, "global_count"),
        ({"global_tokens": "marked", "global_count": 2}, "global_count"),
        ({"dilated_heads": 1}, "dilated_heads"),
    ],
)
def test_what_would_do_nothing_or_contradicts_itself_is_refused(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WindowConfig(**knobs)


def test_more_dilated_heads_than_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixer\.dilated_heads"):
        WindowConfig(dilation=2, dilated_heads=3).build(Shape(DIM, HEADS, 64))


@pytest.mark.parametrize("causal", [True, False])
def test_twice_the_length_costs_twice_as_much(causal: bool) -> None:
    mixer = build(WindowConfig(window=32))
    long_flops, short_flops = mixer.flops(4096, 0, causal), mixer.flops(2048, 0, causal)
    assert long_flops / short_flops == pytest.approx(2, rel=0.02)


def test_a_kernel_that_computes_all_queries_is_not_asked_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention knows no pattern that covers some queries alone, and global rows are such."""

    def dense_flex(pattern: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Any, offset: int, scale: float) -> Tensor:
        return dense(pattern, Inputs(q, k, v, key_mask), scale=scale)

    monkeypatch.setattr(executors, "flexible", lambda q: True)
    monkeypatch.setattr(executors, "flex", dense_flex)
    q, k, v = (noise(1, HEADS, 7, 4) for _ in range(3))
    rows = attend(GlobalQueries((1, 4), causal=False), Inputs(q, k, v, None), scale=0.5)
    same(rows, dense(Band(None, None), Inputs(q, k, v, None), scale=0.5)[:, :, [1, 4]])


def test_no_gradient_is_missing_where_no_token_is_global() -> None:
    """Data-parallel training waits for one of every parameter."""
    mixer = build(WindowConfig(window=1, global_tokens="marked", global_projections="separate"))
    assert isinstance(mixer, Window)
    mixer(noise(1, 5, DIM), context(5)).y.sum().backward()
    assert all(parameter.grad is not None for parameter in mixer.parameters())
