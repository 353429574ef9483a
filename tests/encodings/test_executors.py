"""The blocked executor equals the dense one, forward and backward, and never builds its matrix of all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import as_trained, here, placed, projected, real, same, same_gradients
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.attention import flash
from lit_transformers.attention.executors import (
    AttentionWeighting,
    Inputs,
    attend,
    attend_flops,
    attend_heads,
    attend_union,
    dense,
    with_tables,
)
from lit_transformers.attention.masks import indices
from lit_transformers.attention.patterns import (
    BLOCK,
    Band,
    GlobalQueries,
    Graph,
    Local,
    Marked,
    Pattern,
    QueryBlock,
    Summaries,
    Without,
    visible,
)
from lit_transformers.attention.relative import Relative
from lit_transformers.encodings import (
    EncodingConfig,
    HuangConfig,
    LearnedRelativeConfig,
    RotaryConfig,
    ShawConfig,
    XLConfig,
)
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig

attend, attend_heads, attend_union, dense, with_tables = map(
    as_trained, (attend, attend_heads, attend_union, dense, with_tables)
)
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
KEYS = 19
MARKS = torch.rand(2, KEYS, generator=torch.Generator().manual_seed(5)) < 0.2
EDGES = torch.rand(2, HEADS, 7, 7, generator=torch.Generator().manual_seed(6)) < 0.4
EDGES |= torch.eye(7, dtype=torch.bool)
PATTERNS: dict[str, Pattern] = {
    "causal": Band(None, 0),
    "window": Band(4, 0),
    "everything": Band(None, None),
    "both ways": Band(3, 2),
    "dilated": Band(2, 0, step=3),
    "dilated both ways": Band(1, 2, step=2),
    "strided": Band(None, 0, step=4),
    "the past alone": Band(3, -1),
    "local": Local(5, causal=True),
    "local both ways": Local(4, causal=False),
    "summaries": Summaries(6, 2),
    "fixed": Summaries(6, 2, local=True),
    "marked": Marked(Band(2, 0), MARKS, causal=True),
    "marked both ways": Marked(Band(2, 2), MARKS, causal=False),
    "marked and dilated": Marked(Band(2, 0, step=2), MARKS, causal=True),
    "strided without a window": Without(Band(None, 0, step=3), (Band(4, 0),)),
}
LATER = {"everything", "both ways", "dilated both ways", "local both ways", "marked both ways"}


def pattern_of(name: str, keys: int) -> Pattern:
    """The pattern for ``keys`` keys."""
    pattern = PATTERNS[name]
    return replace(pattern, marks=here(MARKS[:, :keys])) if isinstance(pattern, Marked) else pattern


any_device = pytest.mark.any_device
every_pattern = pytest.mark.parametrize("name", PATTERNS)
every_encoding = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def encoding_of(config: EncodingConfig | None) -> Relative | None:
    if config is None:
        return None
    encoding = placed(config.build(Shape(HEADS * WIDTH, HEADS, 16), WIDTH).double())
    assert isinstance(encoding, Relative)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


def random_inputs(queries: int, keys: int, padded: bool) -> Inputs:
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=real(), requires_grad=True) for n in (queries, keys, keys))
    return Inputs(projected(q), projected(k), projected(v), torch.rand(2, keys) < 0.7 if padded else None)


@any_device
@pytest.mark.parametrize(
    ("name", "encoding_name"),
    [
        (name, encoding_name)
        for name in PATTERNS
        for encoding_name in CONFIGS
        if encoding_name in ("none", "xl") or name in ("causal", "dilated both ways", "marked both ways")
    ],
)
def test_blocked_equals_dense(name: str, encoding_name: str) -> None:
    """Every pattern without an encoding and with one, and every encoding with few patterns: before, after, and far.

    With a last block that is shorter, after a memory, for one query, in one block, and in blocks of one query. Every
    other shape has padding, which hides keys from all blocks alike."""
    torch.manual_seed(0)
    encoding = encoding_of(CONFIGS[encoding_name])
    for number, (queries, keys, size) in enumerate([(13, 13, 4), (7, 18, 3), (1, 9, 5), (8, 8, 8), (11, 12, 1)]):
        pattern, inputs = pattern_of(name, keys), random_inputs(queries, keys, padded=number % 2 == 0)
        full = with_tables(encoding, inputs, causal=name not in LATER) if encoding else inputs
        agree(
            attend(pattern, full, encoding=encoding, scale=SCALE, size=size),
            dense(pattern, full, encoding=encoding, scale=SCALE),
            [inputs.q, inputs.k, inputs.v, *(encoding.parameters() if encoding else ())],
        )


def agree(y: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Forward, and in the gradient of every leaf."""
    same(y, expected, exact=1e-12)
    direction = torch.randn_like(y)
    gradients, expected_gradients = (
        torch.autograd.grad((outputs * direction).sum(), leaves, materialize_grads=True, retain_graph=True)
        for outputs in (y, expected)
    )
    same_gradients(gradients, expected_gradients, exact=1e-11)


@any_device
@pytest.mark.parametrize(
    ("config", "alike"),
    [
        *((config, "nothing") for config in CONFIGS.values()),
        *((CONFIGS["xl"], alike) for alike in ("heads", "rows and heads", "not even the own block")),
    ],
    ids=lambda value: value if isinstance(value, str) else next(key for key in CONFIGS if CONFIGS[key] == value),
)
def test_a_graph_of_blocks_equals_its_mask(config: EncodingConfig | None, alike: str) -> None:
    """With a last block that is shorter and without; every other length has padding."""
    torch.manual_seed(0)
    edges = {
        "nothing": here(EDGES),
        "heads": here(EDGES[:, :1]),
        "rows and heads": here(EDGES[:1, :1]),
        "not even the own block": here(EDGES) & ~(torch.arange(2)[:, None, None, None] * torch.eye(7)).bool(),
    }[alike]
    encoding = encoding_of(config)
    for number, (length, size) in enumerate([(14, 2), (13, 2), (7, 1), (3, 4), (1, 2)]):
        inputs, graph = random_inputs(length, length, padded=number % 2 == 1), Graph(edges, size)
        prepared = with_tables(encoding, inputs, causal=False) if encoding else inputs
        agree(
            attend(graph, prepared, encoding=encoding, scale=SCALE),
            dense(graph, prepared, encoding=encoding, scale=SCALE),
            [inputs.q, inputs.k, inputs.v, *(encoding.parameters() if encoding else ())],
        )


@any_device
@every_encoding
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [2, 256])
def test_listed_queries_see_what_dense_attention_shows_them(
    config: EncodingConfig | None, causal: bool, size: int
) -> None:
    torch.manual_seed(0)
    encoding, inputs, query_indices = encoding_of(config), random_inputs(11, 15, padded=True), (0, 3, 4, 5, 9)
    prepared = with_tables(encoding, inputs, causal=causal) if encoding else inputs
    rows = attend(GlobalQueries(query_indices, causal), prepared, encoding=encoding, scale=SCALE, size=size)
    expected = dense(Band(None, 0 if causal else None), prepared, encoding=encoding, scale=SCALE)
    same(rows, expected[:, :, list(query_indices)], exact=1e-12)


@dataclass(frozen=True)
class Union(Pattern):
    """All that any of the bands sees. It promises nothing that an executor may rely on."""

    bands: tuple[Band, ...]

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.stack([band.sees(b, h, i, j) for band in self.bands]).any(dim=0)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        yield QueryBlock(0, queries, 0, keys)


@any_device
@every_encoding
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "bands", [(Band(3, 0), Band(None, 0, step=4)), (Band(2, 0), Band(2, 0, step=2), Band(2, 0, step=4))], ids=str
)
def test_a_union_of_bands_is_one_softmax_over_all_that_they_see(
    config: EncodingConfig | None, padded: bool, bands: tuple[Band, ...]
) -> None:
    torch.manual_seed(0)
    encoding, inputs = encoding_of(config), random_inputs(13, 17, padded)
    full = with_tables(encoding, inputs, causal=True) if encoding else inputs

    agree(
        attend_union(bands, full, encoding=encoding, scale=SCALE, size=2),
        dense(Union(bands), full, encoding=encoding, scale=SCALE),
        [inputs.q, inputs.k, inputs.v, *(encoding.parameters() if encoding else ())],
    )


@any_device
@every_encoding
def test_heads_with_patterns_of_their_own_see_them(config: EncodingConfig | None) -> None:
    torch.manual_seed(0)
    encoding, inputs = encoding_of(config), random_inputs(9, 12, padded=True)
    prepared = with_tables(encoding, inputs, causal=True) if encoding else inputs
    patterns = (Band(2, 0), Band(2, 0, step=3))
    y = attend_heads(patterns, prepared, encoding=encoding, scale=SCALE)
    for head, band in enumerate(patterns):
        expected = dense(band, prepared, encoding=encoding, scale=SCALE)
        same(y[:, head], expected[:, head], exact=1e-12)


@any_device
@every_pattern
def test_weights_of_ones_own_are_learned_through(name: str) -> None:
    torch.manual_seed(0)
    inputs = random_inputs(11, KEYS, padded=True)
    power = torch.rand(HEADS, 1, 1, dtype=real(), requires_grad=True)

    def apply(logits: Tensor, i: Tensor, j: Tensor, power: Tensor) -> Tensor:
        decay = (1.0 + (i - j).abs()) ** -power
        weights = logits.softmax(dim=-1) * decay
        return weights / weights.sum(-1, keepdim=True)

    weighting = AttentionWeighting(apply, (power,))
    agree(
        attend(pattern_of(name, KEYS), inputs, scale=SCALE, weigh=weighting, size=3),
        dense(pattern_of(name, KEYS), inputs, scale=SCALE, weigh=weighting),
        [inputs.q, inputs.k, inputs.v, power],
    )


@any_device
def test_a_query_that_sees_nothing_says_nothing() -> None:
    inputs = random_inputs(5, 5, padded=False)
    encoding = encoding_of(XLConfig())
    assert encoding is not None
    prepared = with_tables(encoding, inputs, causal=True)
    graph = Graph(torch.tensor([[False, True], [True, True]])[None, None], 3)
    for y in (
        attend(graph, inputs._replace(key_mask=torch.arange(5).expand(2, 5) < 3), scale=SCALE),
        attend(graph, prepared._replace(key_mask=torch.arange(5).expand(2, 5) < 3), encoding=encoding, scale=SCALE),
        attend(Band(2, -1), inputs, scale=SCALE)[:, :, :1],
    ):
        assert not y[:, :, 0].any() and y.isfinite().all()


@every_pattern
@pytest.mark.parametrize("config", [None, XLConfig(), HuangConfig(distance=3)], ids=["none", "xl", "huang"])
def test_the_flops_of_a_pattern_are_those_counted(name: str, config: EncodingConfig | None) -> None:
    encoding, inputs, causal = encoding_of(config), random_inputs(KEYS, KEYS, padded=False), name not in LATER
    single_row = inputs._replace(q=inputs.q[:1], k=inputs.k[:1], v=inputs.v[:1])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        prepared = with_tables(encoding, single_row, causal) if encoding else single_row
        attend(PATTERNS[name], prepared, encoding=encoding, scale=SCALE, size=4)
    flops = attend_flops(PATTERNS[name], KEYS, KEYS, HEADS * WIDTH, causal=causal, encoding=encoding, size=4)
    assert flops == counter.get_total_flops()


@any_device
@pytest.mark.parametrize("name", ["xl", "shaw", "huang", "huang per head"])
def test_tables_of_past_distances_suffice_where_no_later_key_is_seen(name: str) -> None:
    encoding = encoding_of(CONFIGS[name])
    assert encoding is not None
    inputs = random_inputs(9, 14, padded=True)
    past_only, both_sides = (
        attend(Band(None, 0), with_tables(encoding, inputs, causal=causal), encoding=encoding, scale=SCALE, size=4)
        for causal in (True, False)
    )
    same(past_only, both_sides, exact=1e-12)


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
        replaced = inputs._replace(q=q, k=k, v=v)
        prepared = with_tables(encoding, replaced, causal=True) if encoding else replaced
        return attend(Band(None, 0), prepared, encoding=encoding, scale=SCALE, dropout=0.4, size=2)

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
    step=st.integers(1, 4),
    size=st.integers(1, 13),
)
@settings(max_examples=150)
def test_blocks_hold_every_key_that_a_query_sees_and_every_query_once(
    before: int | None, after: int | None, queries: int, remembered: int, step: int, size: int
) -> None:
    band = Band(before, after, step)
    covered = covered_pairs(band, queries, queries + remembered, size)
    assert torch.equal(covered, visible_pairs(band, queries, queries + remembered).expand_as(covered))


@every_pattern
@given(queries=st.integers(1, 12), remembered=st.integers(0, KEYS - 12), size=st.integers(1, 13))
@settings(max_examples=15)
def test_blocks_hold_all_that_any_pattern_sees(name: str, queries: int, remembered: int, size: int) -> None:
    keys = queries + remembered
    covered = covered_pairs(pattern_of(name, keys), queries, keys, size)
    assert torch.equal(covered, visible_pairs(pattern_of(name, keys), queries, keys).expand_as(covered))


def covered_pairs(pattern: Pattern, queries: int, keys: int, size: int) -> Tensor:
    """The pairs that the masks of the blocks let through. Asserts that no block holds a key twice, and that each query
    is in one block."""
    blocks, covered = list(pattern.blocks(queries, keys, keys - queries, size)), torch.zeros(2, 1, queries, keys).bool()
    for block in blocks:
        i, j = indices(block, keys - queries, torch.device("cpu"))
        assert len(j.unique()) == len(j)
        visible_keys = visible(pattern, i, j, None, 2, 1).expand(2, 1, -1, -1)
        covered[:, :, torch.tensor(block.queries)[:, None], j] = visible_keys
    assert sorted(query for block in blocks for query in block.queries) == list(range(queries))
    return covered


PROMISING = PATTERNS | {
    "listed queries": GlobalQueries((0, 1, 4), causal=True),
    "a graph": Graph(torch.ones(1, 1, 7, 7, dtype=torch.bool), 3),
    "all at a step": Band(None, None, step=2),
    "wholly ahead": Band(-1, None),
}


@pytest.mark.parametrize("pattern", PROMISING.values(), ids=PROMISING)
def test_what_a_pattern_promises_is_what_it_does(pattern: Pattern) -> None:
    """A broken promise would hide keys, or show them, in every executor that relies on it."""
    allowed = visible_pairs(pattern, KEYS, KEYS).expand(2, 1, KEYS, KEYS)[0, 0]
    assert pattern.full == bool(allowed.all()) or isinstance(pattern, Graph)
    assert pattern.triangular == torch.equal(allowed, torch.ones_like(allowed).tril()) or isinstance(
        pattern, GlobalQueries
    )
    assert not pattern.sees_itself or allowed.diagonal().all()
    assert pattern.static == (not any(isinstance(getattr(pattern, part.name), Tensor) for part in fields(pattern)))
    blocks = [block._replace(further=None) for block in pattern.blocks(KEYS, KEYS, 0, 3)]
    assert pattern.complete == (sorted(query for block in blocks for query in block.queries) == [*range(KEYS)])
    for block, following in pairwise(blocks):
        mask, next_mask = (allowed[block.queries][:, block.keys] for block in (block, following))
        assert mask[:, : pattern.first_hidden(block, 0) or 0].all()
        if pattern.shift_invariant and following.follows(block, following.first - block.first):
            assert torch.equal(mask, next_mask)


def visible_pairs(pattern: Pattern, queries: int, keys: int) -> Tensor:
    return visible(pattern, torch.arange(keys - queries, keys)[:, None], torch.arange(keys), None, 2, 1)


def test_true_means_may_attend() -> None:
    """A query that sees one key alone says that key's value."""
    q = k = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]], dtype=torch.float64)[None, None]
    assert torch.equal(attend(Band(0, 0), Inputs(q, k, v, None), scale=1.0), v)
    key_mask = torch.tensor([[True, False, False]])
    y = attend(Band(None, 0), Inputs(q, k, v, key_mask), scale=1.0)[0, 0]
    assert torch.equal(y[0], v[0, 0, 0])
    torch.testing.assert_close(y[2], (v[0, 0, 0] + v[0, 0, 2]) / 2)  # key 0, and its own, which it always sees


class Largest(TorchDispatchMode):
    """Watches every operation, backward ones too, for the largest tensor it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return output


def test_a_block_without_keys_is_zero() -> None:
    """The first query of "the past alone" is a separate block without keys: the kernel of a CPU would divide by 0."""
    inputs, past = random_inputs(5, 5, padded=False), Band(3, -1)
    outputs = [run(past, inputs, scale=SCALE) for run in (partial(attend, size=1), dense)]
    agree(*outputs, [inputs.q, inputs.k, inputs.v])
    assert not outputs[0][:, :, 0].any()


class KernelCalls(TorchDispatchMode):
    """Counts the calls of the fused kernel of a CPU, forward and backward, and those of the softmax without it."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = self.softmax = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.forward += func is flash.KERNEL
        self.backward += func is flash.BACKWARD
        self.softmax += func is torch.ops.aten._softmax.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("pattern", [Band(4, 0), PATTERNS["fixed"], Graph(EDGES[:1], 3)], ids=str)
def test_a_training_step_computes_the_scores_of_a_block_once(pattern: Pattern) -> None:
    inputs = random_inputs(19, 19, padded=False)
    with KernelCalls() as calls:
        attend(pattern, inputs, scale=SCALE, size=4).sum().backward()
    assert calls.forward == calls.backward > 0


@pytest.mark.parametrize("pattern", [Band(None, 0), Band(4, 0), PATTERNS["fixed"]], ids=str)
def test_weights_of_an_encoded_block_come_from_the_log_sum_exp_of_the_fused_kernel(pattern: Pattern) -> None:
    encoding = encoding_of(XLConfig())
    assert encoding is not None
    inputs = with_tables(encoding, random_inputs(19, 19, padded=False), causal=True)
    with KernelCalls() as calls:
        attend(pattern, inputs, encoding=encoding, scale=SCALE, size=4).sum().backward()
    assert calls.forward > 0 == calls.softmax == calls.backward


@pytest.mark.parametrize("config", [XLConfig(), LearnedRelativeConfig()], ids=["xl", "learned_relative"])
def test_values_alone_are_learned_where_all_else_is_frozen(config: EncodingConfig) -> None:
    encoding = encoding_of(config)
    assert encoding is not None
    encoding.requires_grad_(False)
    inputs = random_inputs(19, 19, padded=False)
    full = with_tables(encoding, inputs._replace(q=inputs.q.detach(), k=inputs.k.detach()), causal=True)
    outputs = [run(Band(None, 0), full, encoding=encoding, scale=SCALE) for run in (partial(attend, size=4), dense)]
    agree(*outputs, [inputs.v])


@pytest.mark.slow
@every_encoding
def test_no_tensor_grows_with_the_square_of_the_length(config: EncodingConfig | None) -> None:
    """With a memory: a row without one is the first of such a row's segments."""
    memory = 300

    def largest_tensor(length: int) -> int:
        layer = AttentionConfig(encoding=config, memory=memory).build(Shape(HEADS * WIDTH, HEADS, length))
        ctx = Context(torch.arange(length)[None], causal=True)
        x = torch.randn(1, length, HEADS * WIDTH, requires_grad=True)
        state = layer(x, ctx).state
        with Largest() as tracker:
            layer(x, ctx, state).y.sum().backward()
        return tracker.elements

    length = 4 * BLOCK
    assert largest_tensor(length) <= 3 * HEADS * BLOCK * (length + memory + BLOCK)
    assert largest_tensor(length) < 2.3 * largest_tensor(length // 2)


@every_encoding
def test_what_is_kept_for_the_backward_pass_grows_with_the_length_alone(config: EncodingConfig | None) -> None:
    def saved_bytes(length: int) -> int:
        layer = AttentionConfig(encoding=config, memory=300).build(Shape(HEADS * WIDTH, HEADS, length))
        ctx = Context(torch.arange(length)[None], causal=True)
        x = torch.randn(1, length, HEADS * WIDTH, requires_grad=True)
        state = layer(x, ctx).state
        sizes: dict[int, int] = {}

        def record_size(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
            layer(x, ctx, state)
        return sum(sizes.values())

    assert saved_bytes(8 * BLOCK) < 2.3 * saved_bytes(4 * BLOCK)
