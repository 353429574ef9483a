"""The blocked executor equals the dense one, forward and backward, and never builds what the dense one builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_transformers.encodings import (
    EncodingConfig,
    HuangConfig,
    LearnedRelativeConfig,
    RotaryConfig,
    ShawConfig,
    XLConfig,
)
from lit_transformers.encodings.relative import Relative
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.patterns import BLOCK, Band, Inputs, attend, blocks, dense, visible, with_tables

HEADS, WIDTH, SCALE = 2, 4, 0.5
CONFIGS: dict[str, EncodingConfig | None] = {
    "none": None,
    "xl": XLConfig(),
    "shaw": ShawConfig(distance=3),
    "shaw per head": ShawConfig(distance=3, per_head=True),
    "huang": HuangConfig(distance=3),
    "huang per head": HuangConfig(distance=3, per_head=True),
    "learned_relative": LearnedRelativeConfig(buckets=4, max_distance=9),
}
BANDS = [Band(None, 0), Band(4, 0), Band(None, None), Band(3, 2)]
every_encoding = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def encoding_of(config: EncodingConfig | None) -> Relative | None:
    if config is None:
        return None
    encoding = config.build(Shape(HEADS * WIDTH, HEADS, 16), WIDTH).double()
    assert isinstance(encoding, Relative)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


def random_inputs(queries: int, keys: int, padded: bool) -> Inputs:
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys))
    return Inputs(q, k, v, torch.rand(2, keys) < 0.7 if padded else None)


@every_encoding
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("queries", "keys", "size"), [(13, 13, 4), (7, 18, 3), (1, 9, 5), (8, 8, 8), (11, 12, 1)])
def test_blocked_equals_dense(
    config: EncodingConfig | None, band: Band, padded: bool, queries: int, keys: int, size: int
) -> None:
    torch.manual_seed(0)
    encoding, inputs = encoding_of(config), random_inputs(queries, keys, padded)
    full = with_tables(encoding, inputs, causal=band.after == 0) if encoding else inputs
    one = attend(band, full, encoding=encoding, scale=SCALE, size=size)
    other = dense(band, full, encoding=encoding, scale=SCALE)
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
    leaves = [inputs.q, inputs.k, inputs.v, *(encoding.parameters() if encoding else ())]
    direction = torch.randn_like(one)
    ours, theirs = (
        torch.autograd.grad((y * direction).sum(), leaves, materialize_grads=True, retain_graph=True)
        for y in (one, other)
    )
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", ["xl", "shaw", "huang", "huang per head"])
def test_tables_of_past_distances_suffice_where_no_later_key_is_seen(name: str) -> None:
    encoding = encoding_of(CONFIGS[name])
    assert encoding is not None
    inputs = random_inputs(9, 14, padded=True)
    past, both = (
        attend(Band(None, 0), with_tables(encoding, inputs, causal=causal), encoding=encoding, scale=SCALE, size=4)
        for causal in (True, False)
    )
    torch.testing.assert_close(past, both, atol=1e-12, rtol=1e-12)


@every_encoding
def test_gradients_equal_finite_differences(config: EncodingConfig | None) -> None:
    torch.manual_seed(0)
    layer = AttentionConfig(encoding=config).build(Shape(HEADS * WIDTH, HEADS, 5)).double()
    check_gradients(layer)


@pytest.mark.parametrize("unrotated", [0.0, 0.5])
def test_gradients_of_rotary_equal_finite_differences(unrotated: float) -> None:
    torch.manual_seed(0)
    encoding = RotaryConfig(unrotated=unrotated)
    check_gradients(AttentionConfig(encoding=encoding).build(Shape(HEADS * WIDTH, HEADS, 5)).double())


def check_gradients(layer: torch.nn.Module) -> None:
    names = [name for name, _ in layer.named_parameters()]
    values = [torch.randn_like(p).mul_(0.4).requires_grad_() for p in layer.parameters()]
    x = torch.randn(1, 5, HEADS * WIDTH, dtype=torch.float64, requires_grad=True)
    ctx = Context(torch.arange(5)[None], causal=True)

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        mixed = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, ctx))
        y: Tensor = mixed.y
        return y

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@every_encoding
def test_a_recomputed_block_drops_the_same_weights(config: EncodingConfig | None) -> None:
    torch.manual_seed(0)
    encoding, inputs = encoding_of(config), random_inputs(6, 8, padded=False)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        given = inputs._replace(q=q, k=k, v=v)
        full = with_tables(encoding, given, causal=True) if encoding else given
        return attend(Band(None, 0), full, encoding=encoding, scale=SCALE, dropout=0.4, size=2)

    assert (run(*inputs[:3]) - attend_without_dropout(encoding, inputs)).abs().max() > 0.1
    assert torch.autograd.gradcheck(run, inputs[:3], fast_mode=True)


def attend_without_dropout(encoding: Relative | None, inputs: Inputs) -> Tensor:
    full = with_tables(encoding, inputs, causal=True) if encoding else inputs
    return attend(Band(None, 0), full, encoding=encoding, scale=SCALE, size=2)


@given(
    before=st.none() | st.integers(0, 9),
    after=st.none() | st.integers(0, 9),
    queries=st.integers(1, 12),
    remembered=st.integers(0, 9),
    size=st.integers(1, 13),
)
@settings(deadline=None, max_examples=150)
def test_blocks_hold_every_key_that_a_query_sees_and_every_query_once(
    before: int | None, after: int | None, queries: int, remembered: int, size: int
) -> None:
    band, keys = Band(before, after), queries + remembered
    held = torch.zeros(queries, keys, dtype=torch.bool)
    run = list(blocks(band, queries, keys, remembered, size))
    for block in run:
        part = visible(band, block, remembered, None, torch.device("cpu"))[0, 0]
        held[block.first : block.stop, block.start : block.end] |= part
    i, j = torch.arange(remembered, keys)[:, None], torch.arange(keys)[None]
    assert torch.equal(held, band(i, j))
    assert [query for block in run for query in range(block.first, block.stop)] == list(range(queries))


def test_true_means_may_attend() -> None:
    """A query that sees one key alone says that key's value."""
    q = k = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]], dtype=torch.float64)[None, None]
    assert torch.equal(attend(Band(0, 0), Inputs(q, k, v, None), scale=1.0), v)
    seen = torch.tensor([[True, False, False]])
    y = attend(Band(None, 0), Inputs(q, k, v, seen), scale=1.0)[0, 0]
    assert torch.equal(y[0], v[0, 0, 0])
    torch.testing.assert_close(y[2], (v[0, 0, 0] + v[0, 0, 2]) / 2)  # key 0, and its own, which it always sees


class Largest(TorchDispatchMode):
    """Watches every operation, backward ones too, for the largest tensor it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@every_encoding
@pytest.mark.parametrize("memory", [0, 300])
def test_no_tensor_grows_with_the_square_of_the_length(config: EncodingConfig | None, memory: int) -> None:
    def largest(length: int) -> int:
        layer = AttentionConfig(encoding=config, memory=memory).build(Shape(HEADS * WIDTH, HEADS, length))
        ctx = Context(torch.arange(length)[None], causal=True)
        x = torch.randn(1, length, HEADS * WIDTH, requires_grad=True)
        state = layer(x, ctx).state
        with Largest() as watch:
            layer(x, ctx, state).y.sum().backward()
        return watch.elements

    length = 4 * BLOCK
    assert largest(length) <= 3 * HEADS * BLOCK * (length + memory + BLOCK)
    assert largest(length) < 2.3 * largest(length // 2)


@every_encoding
@pytest.mark.parametrize("memory", [0, 300])
def test_what_is_kept_for_the_backward_pass_grows_with_the_length_alone(
    config: EncodingConfig | None, memory: int
) -> None:
    def kept(length: int) -> int:
        layer = AttentionConfig(encoding=config, memory=memory).build(Shape(HEADS * WIDTH, HEADS, length))
        ctx = Context(torch.arange(length)[None], causal=True)
        x = torch.randn(1, length, HEADS * WIDTH, requires_grad=True)
        state = layer(x, ctx).state
        sizes: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            layer(x, ctx, state)
        return sum(sizes.values())

    assert kept(8 * BLOCK) < 2.3 * kept(4 * BLOCK)
