"""FlexAttention reads the same keys as dense attention, by few kernels, with small block masks.

``as_a_kernel`` reads a block mask as a kernel does: whole blocks unmasked, others masked pair by pair, and no block
that is not listed. Kernels themselves are compared in ``test_executors_on_cuda.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask, create_mask

from lit_transformers.attention import block_masks, flex
from lit_transformers.attention.executors import Inputs, attend, dense
from lit_transformers.attention.patterns import (
    TILE,
    Band,
    Graph,
    Local,
    Marked,
    Ordered,
    Pattern,
    QueryBlock,
    Summaries,
    Tiling,
    Without,
    visible,
)
from lit_transformers.attention.recompute import heads_last

CPU = torch.device("cpu")
HEADS, SCALE = 2, 0.3
PATTERNS: dict[str, Pattern] = {
    "causal": Band(None, 0),
    "everything": Band(None, None),
    "window": Band(90, 0),
    "both ways": Band(50, 30),
    "dilated both ways": Band(15, 12, step=4),
    "the past alone": Band(60, -1),
    "local": Local(100, causal=True),
    "local both ways": Local(96, causal=False),
    "fixed": Summaries(64, 3, local=True),
    "strided without a window": Without(Band(None, 0, step=7), (Band(90, 0),)),
}
OF_TENSORS = ("marked", "marked both ways", "graph", "graph of heads", "graph for all", "ordered", "ordered before")


@pytest.fixture(autouse=True)
def _no_kernels_before() -> Iterator[None]:
    flex.ADMITTED.clear()
    yield
    flex.ADMITTED.clear()
    for cached in (flex.compiled, block_masks.cached_mask, block_masks.cached_outline):
        cached.cache_clear()


def pattern_of(name: str, rows: int, keys: int) -> Pattern:
    if name in PATTERNS:
        return PATTERNS[name]
    seeded = torch.Generator().manual_seed(5)
    marks = torch.rand(rows, keys, generator=seeded) < 0.01
    blocks = -(-keys // 40)
    edges = (torch.rand(rows, HEADS, blocks, blocks, generator=seeded) < 0.4) | torch.eye(blocks, dtype=torch.bool)
    places = torch.stack([torch.randperm(keys, generator=seeded) for _ in range(rows)])
    return {
        "marked": Marked(Band(30, 0), marks, causal=True),
        "marked both ways": Marked(Band(30, 30), marks, causal=False),
        "graph": Graph(edges, 40),
        "graph of heads": Graph(edges[:1], 40),
        "graph for all": Graph(edges[:1, :1], 40),
        "ordered": Ordered(places, itself=True),
        "ordered before": Ordered(places, itself=False),
    }[name]


def listed(numbers: Tensor, indices: Tensor) -> Tensor:
    """The blocks (b, h, m, n) that a kernel reads."""
    is_listed = torch.arange(indices.size(-1)) < numbers[..., None]
    return torch.zeros_like(is_listed).scatter(-1, indices.long(), is_listed)


def tiles(mask: BlockMask) -> tuple[Tensor, Tensor]:
    """The blocks that are masked, and those that are read whole."""
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    return listed(mask.kv_num_blocks, mask.kv_indices), listed(mask.full_kv_num_blocks, mask.full_kv_indices)


def as_a_kernel(q: Tensor, k: Tensor, v: Tensor, block_mask: BlockMask, scale: float) -> Tensor:
    masked, whole = (
        part.repeat_interleave(TILE, -2).repeat_interleave(TILE, -1).expand(*q.shape[:2], -1, -1)
        for part in tiles(block_mask)
    )
    assert masked.shape[-2:] == (q.size(-2), k.size(-2)) == block_mask.seq_lengths
    pairs = create_mask(block_mask.mask_mod, *q.shape[:2], q.size(-2), k.size(-2), device="cpu")
    hidden = ~(whole | masked & pairs)
    weights = ((q @ k.mT) * scale).masked_fill(hidden, float("-inf")).softmax(-1)
    return weights.masked_fill(hidden, 0.0) @ v


def masks_of(inputs: Inputs, kind: str) -> Inputs:
    """With no key mask, with hidden keys anywhere, or with a row that is all padding."""
    rows, keys = inputs.k.size(0), inputs.k.size(-2)
    if kind == "whole":
        return inputs
    hidden_after = torch.tensor([keys, 0, 140] * rows)[:rows, None]
    key_mask = torch.rand(rows, keys) < 0.7 if kind == "holes" else torch.arange(keys) < hidden_after
    return inputs._replace(key_mask=key_mask)


@pytest.mark.parametrize("kind", ["whole", "holes", "padded"])
@pytest.mark.parametrize("name", [*PATTERNS, *OF_TENSORS])
def test_what_a_kernel_reads_is_what_dense_attention_reads(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients, for exact lengths, padded ones, after a memory, and for rows that are padded."""
    monkeypatch.setattr(flex, "compiled", lambda function: as_a_kernel)
    torch.manual_seed(0)
    for rows, queries, remembered in [(2, 256, 0), (3, 150, 0), (2, 130, 77), (9, 20, 130)]:
        remembered = 0 if name.startswith("graph") else remembered
        pattern = pattern_of(name, rows, queries + remembered)
        leaves = [
            torch.randn(rows, HEADS, length, 4, dtype=torch.float64, requires_grad=True)
            for length in (queries, queries + remembered, queries + remembered)
        ]
        inputs = masks_of(Inputs(leaves[0], leaves[1], leaves[2], None), kind)
        y = flex.flex(pattern, *inputs[:4], inputs.offset, SCALE)
        assert y is not None
        expected = dense(pattern, inputs, scale=SCALE)
        direction = torch.randn_like(y)
        torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
        for gradient, reference in zip(
            torch.autograd.grad(y, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
        ):
            torch.testing.assert_close(gradient, reference, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
def test_a_kernel_reads_another_sequence_as_dense_attention_does(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "compiled", lambda function: as_a_kernel)
    q, k, v = (torch.randn(3, HEADS, length, 4, dtype=torch.float64) for length in (140, 61, 61))
    inputs = Inputs(q, k, v, torch.rand(3, 61) < 0.5 if padded else None, crossed=True)
    y = flex.flex(Band(None, None), *inputs[:4], inputs.offset, SCALE)
    torch.testing.assert_close(y, dense(Band(None, None), inputs, scale=SCALE), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", [*PATTERNS, "graph", "graph for all", "ordered"])
def test_blocks_are_those_that_hold_a_visible_pair(name: str) -> None:
    """No more are read, and no fewer are read whole: a block more costs as much as one that is needed."""
    rows, keys = 2, 400
    pattern, tiling = pattern_of(name, rows, keys), Tiling(0, keys, keys, 512, 512, CPU)
    extended = pattern.extended(rows, 1024)
    assert extended is not None
    mask = block_masks.block_mask(extended, tiling, None, rows, rows, HEADS)
    masked, whole = tiles(mask)
    shape = (rows if pattern.of_rows else 1, HEADS if pattern.of_heads else 1, 4, 4)
    assert masked.shape == whole.shape == shape
    pairs = torch.zeros(*shape[:2], 512, 512, dtype=torch.bool)
    pairs[..., :keys, :keys] = visible(pattern, torch.arange(keys)[:, None], torch.arange(keys), None, *shape[:2])
    by_tile = pairs.unflatten(3, (4, TILE)).unflatten(2, (4, TILE)).transpose(3, 4)
    assert torch.equal(masked | whole, by_tile.flatten(4).any(-1))
    expected_whole = by_tile.flatten(4).all(-1)
    assert torch.equal(whole[:, :, :3], expected_whole[:, :, :3])  # in the last row of blocks some queries do not exist
    assert not (expected_whole & ~whole).any()


def test_a_key_mask_drops_blocks_and_leaves_whole_ones_whole() -> None:
    """Of a row without padding the blocks are those of the pattern; of padding they are the queries' own alone."""
    key_mask = torch.arange(512) < torch.tensor([[512], [200], [0]])
    mask = block_masks.block_mask(Band(None, 0), Tiling(0, 512, 512, 512, 512, CPU), key_mask, 3, 3, HEADS)
    masked, whole = tiles(mask)
    assert masked.shape == (3, 1, 4, 4)
    eye, below = torch.eye(4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.bool).tril(-1)
    assert torch.equal(whole[0, 0], below) and torch.equal(masked[0, 0], eye)
    first, second = torch.arange(4) == 0, torch.arange(4) == 1
    assert torch.equal(whole[1, 0], below & first) and torch.equal(masked[1, 0], eye | below & second)
    assert torch.equal(masked[2, 0], eye) and not whole[2].any()


def test_a_long_block_mask_is_small_and_made_without_a_matrix_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 64k keys it has four lists of 512 x 512 numbers of four bytes, for any number of rows and heads."""
    sizes: list[int] = []
    sees = Local.sees

    def counted(pattern: Local, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        sizes.append(i.numel() * j.numel())
        return sees(pattern, b, h, i, j)

    monkeypatch.setattr(block_masks, "PAIRS", 2**21)
    monkeypatch.setattr(Local, "sees", counted)
    length = 2**12
    mask = block_masks.block_mask(
        Local(300, causal=True), Tiling(0, length, length, length, length, CPU), None, 32, 32, 16
    )
    assert max(sizes) <= 2**21 and sum(sizes) == length**2
    lists = [part for part in mask.as_tuple() if isinstance(part, Tensor)]
    assert sum(part.numel() * part.element_size() for part in lists) == 4 * 4 * (32 * 32 + 32)


def test_masks_of_two_patterns_that_hold_the_same_numbers_are_not_taken_for_each_other() -> None:
    make = partial(block_masks.cached_mask, tiling=Tiling(0, 8, 8, TILE, TILE, CPU))
    assert make(Band(4, 2, 1)) is make(Band(4, 2, 1)) is not make(Summaries(4, 2, True))


def test_a_mask_that_inference_made_first_trains() -> None:
    with torch.inference_mode():
        mask = block_masks.cached_mask(Band(4, 0), Tiling(0, 8, 8, TILE, TILE, CPU))
    assert not any(part.is_inference() for part in mask.as_tuple() if isinstance(part, Tensor))


def pretended_kernel(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return v.new_zeros(*q.shape[:3], v.size(-1))


@pytest.fixture
def without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors have no values: code that reads one, and would have to wait for a device, fails."""
    monkeypatch.setattr(flex, "TRAINS_ON", "cpu")
    monkeypatch.setattr(flex, "compiled", lambda function: pretended_kernel)
    with FakeTensorMode():
        yield


def shaped_inputs(rows: int, queries: int, keys: int, padded: bool = False) -> Inputs:
    q, k, v = (torch.empty(rows, HEADS, length, 16) for length in (queries, keys, keys))
    return Inputs(q, k, v, torch.ones(rows, keys, dtype=torch.bool) if padded else None)


@pytest.mark.usefixtures("without_values")
def test_rows_of_many_lengths_need_few_kernels() -> None:
    for length in [*range(512, 1537, 64), 513, 1533]:
        attend(Band(40, 0), shaped_inputs(1, length, length), scale=SCALE)
    assert [kernel.shape[2] for kernel in flex.kernels()] == [512, 640, 768, 896, 1024, 1280, 1536]


@pytest.mark.usefixtures("without_values")
def test_a_memory_that_grows_needs_a_kernel_for_each_length_of_the_ladder() -> None:
    for remembered in range(100, 513, 32):
        attend(Band(None, 0), shaped_inputs(2, 512, 512 + remembered), scale=SCALE)
    assert [kernel.shape[2:4] for kernel in flex.kernels()] == [(512, 640), (512, 768), (512, 896), (512, 1024)]


@pytest.mark.usefixtures("without_values")
@pytest.mark.parametrize(("queries", "most"), [(1, 164), (40, 47), (511, 518)])
def test_few_queries_need_no_kernel(queries: int, most: int) -> None:
    """Sampling with a memory, translation of sentences, and segments of less than 512 tokens."""
    for keys in (queries, most):
        for padded in (False, True):
            attend(Band(40, 0), shaped_inputs(3, queries, keys, padded), scale=SCALE)
    assert flex.kernels() == ()


@pytest.mark.usefixtures("without_values")
def test_beyond_the_bound_patterns_run_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "KERNELS", 3)
    for before in [*range(1, 9), 1, 2, 3]:
        attend(Band(before, 0), shaped_inputs(1, 512, 512), scale=SCALE)
    assert [kernel.pattern for kernel in flex.kernels()] == [("Band", before, 0, 1) for before in (1, 2, 3)]


@pytest.mark.usefixtures("without_values")
def test_lengths_of_blocks_are_not_masked_and_others_only_where_a_query_would_see_padding() -> None:
    for pattern, length in [(Band(90, 0), 512), (Band(90, 0), 600), (Band(90, 9), 512), (Band(90, 9), 600)]:
        attend(pattern, shaped_inputs(1, length, length), scale=SCALE)
    assert [kernel.mask for kernel in flex.kernels()] == [(False, number == 3, False) for number in range(4)]


def test_padding_keeps_the_layout_of_the_projections_that_made_heads() -> None:
    """Otherwise exact and padded lengths would need separate kernels."""
    by_heads = torch.randn(3, HEADS, 150, 4)
    for x in (by_heads, by_heads.transpose(1, 2).contiguous().transpose(1, 2)):
        for rows, length in [(3, 150), (4, 256)]:
            y = flex.padded(x, rows, length)
            assert y.shape == (rows, HEADS, length, 4) and y.stride() == flex.strides(x, rows, length)
            assert heads_last(y) == heads_last(x)
            assert torch.equal(y[:3, :, :150], x) and not y[3:].any() and not y[:, :, 150:].any()


@dataclass(frozen=True)
class Bias(Pattern):
    """A pattern from outside, which holds a tensor of pairs and says no more than it must."""

    complete = True
    pairs: Tensor

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.pairs[i, j]

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        yield QueryBlock(0, queries, 0, keys)


@pytest.mark.usefixtures("without_values")
def test_a_pattern_that_cannot_be_read_at_padding_runs_in_blocks() -> None:
    attend(Bias(torch.ones(512, 512, dtype=torch.bool)), shaped_inputs(1, 512, 512), scale=SCALE)
    assert flex.kernels() == ()


def test_at_most_a_quarter_is_padding() -> None:
    lengths = [flex.rounded(length) for length in range(1, 3000)]
    assert lengths[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(length <= padded <= 1.25 * length for length, padded in enumerate(lengths, start=1))
    assert len(set(lengths)) == 8 + 4 * 9 - 2
    assert [flex.rounded(length, TILE) for length in (1, 128, 129, 1025)] == [128, 128, 256, 1280]


@pytest.mark.slow
def test_a_function_is_compiled_for_so_many_shapes_and_never_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "KERNELS", 1)
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))
    double = flex.compiled(lambda x: 2 * x)
    for length in (2, 3):
        assert torch.equal(double(torch.ones(length)), torch.full((length,), 2.0))
    with pytest.raises(Exception, match="recompile_limit"):
        double(torch.ones(4))


@pytest.mark.slow
@torch.no_grad()
def test_the_kernel_of_a_cpu_equals_dense() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, HEADS, length, 16) for length in (150, 160, 160))
    inputs = Inputs(q, k, v, torch.rand(3, 160) < 0.7)
    pattern = pattern_of("marked", 3, 160)
    outputs = flex.flex(pattern, q, k, v, inputs.key_mask, inputs.offset, SCALE)
    torch.testing.assert_close(outputs, dense(pattern, inputs, scale=SCALE), atol=1e-5, rtol=1e-5)
