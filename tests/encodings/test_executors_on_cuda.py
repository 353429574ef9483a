"""On CUDA, FlexAttention and the fused kernels of PyTorch equal dense attention in float64, in outputs and gradients;
and a second computation draws the same random numbers as the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from numerics import PRECISIONS, compare
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_transformers.attention import executors, flex
from lit_transformers.attention.executors import Inputs, attend, dense, fused, with_tables
from lit_transformers.attention.flex import flexible
from lit_transformers.attention.patterns import Band, Graph, Local, Marked, Pattern, Summaries
from lit_transformers.attention.relative import Relative
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
CUDA = torch.device("cuda")
ROWS, HEADS, SCALE = 2, 2, 0.3
QUERIES, REMEMBERED = 600, 100
"""As many as have a kernel, and no multiple of a block; after a memory."""
Inside = Callable[[], AbstractContextManager[Any]]

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])


def pattern_of(name: str, device: torch.device = CUDA) -> Pattern:
    """Limits that cut through the kernels' blocks of 128."""
    keys, seeded = QUERIES + REMEMBERED, torch.Generator().manual_seed(5)
    marks = (torch.rand(ROWS, keys, generator=seeded) < 0.02).to(device)
    edges = torch.rand(ROWS, HEADS, 15, 15, generator=seeded) < 0.4
    edges = (edges | torch.eye(15, dtype=torch.bool)).to(device)
    return {
        "causal": Band(None, 0),
        "everything": Band(None, None),
        "window": Band(90, 0),
        "both ways": Band(50, 30),
        "dilated": Band(20, 0, step=5),
        "dilated both ways": Band(15, 12, step=4),
        "strided": Band(None, 0, step=7),
        "the past alone": Band(60, -1),
        "local": Local(100, causal=True),
        "local both ways": Local(96, causal=False),
        "summaries": Summaries(64, 3),
        "fixed": Summaries(64, 3, local=True),
        "marked": Marked(Band(30, 0), marks, causal=True),
        "marked both ways": Marked(Band(30, 30), marks, causal=False),
        "graph": Graph(edges, 40),
        "a graph for all": Graph(edges[:1, :1], 40),
    }[name]


PATTERNS = (
    "causal", "everything", "window", "both ways", "dilated", "dilated both ways", "strided", "the past alone", "local",
    "local both ways", "summaries", "fixed", "marked", "marked both ways", "graph", "a graph for all",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    flex.compiled.cache_clear()
    flex.ADMITTED.clear()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Pattern]:
    """The patterns that FlexAttention is called with."""
    patterns = []

    def recording_flex(pattern: Pattern, *arguments: Any) -> Tensor | None:
        patterns.append(pattern)
        return flex.flex(pattern, *arguments)

    monkeypatch.setattr(executors, "flex", recording_flex)
    return patterns


def random_inputs(
    pattern: Pattern, dtype: torch.dtype, width: int, padded: bool, remembered: int | None = None, device: Any = CUDA
) -> Inputs:
    """With a memory, but where a pattern takes none."""
    before = (0 if isinstance(pattern, Graph) else REMEMBERED) if remembered is None else remembered
    q, k, v = (
        torch.randn(ROWS, HEADS, length, width, device=device, dtype=dtype, requires_grad=True)
        for length in (QUERIES, QUERIES + before, QUERIES + before)
    )
    return Inputs(q, k, v, torch.rand(ROWS, QUERIES + before, device=device) < 0.7 if padded else None)


def check_against_dense(pattern: Pattern, inputs: Inputs, inside: Inside = nullcontext) -> None:
    """With dense attention in float64 on the same numbers: outputs, and gradients of queries, keys and values."""
    leaves = list(inputs[:3])
    double_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with inside():
        y = attend(pattern, inputs, scale=SCALE)
        direction = torch.randn_like(y)
        gradients = torch.autograd.grad(y, leaves, direction)
    expected = dense(pattern, inputs._replace(q=double_leaves[0], k=double_leaves[1], v=double_leaves[2]), scale=SCALE)
    expected_gradients = torch.autograd.grad(expected, double_leaves, direction.double())
    bounds = PRECISIONS["bf16" if y.dtype == torch.bfloat16 else "float32"]
    assert y.dtype == leaves[0].dtype
    compare([y.double()], [expected], 0.0, bounds.values)
    compare([gradient.double() for gradient in gradients], expected_gradients, 0.0, bounds.gradients)


@dtypes
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", PATTERNS)
def test_flex_attention_equals_dense(name: str, padded: bool, dtype: torch.dtype, calls: list[Pattern]) -> None:
    pattern = pattern_of(name)
    inputs = random_inputs(pattern, dtype, 64, padded)
    check_against_dense(pattern, inputs)
    assert len(calls) == (0 if fused(pattern, inputs) else 1)


TWELVE = (
    *(("window", padded, dtype) for padded in (False, True) for dtype in (torch.float32, torch.bfloat16)),
    *((name, False, torch.bfloat16) for name in ("both ways", "dilated", "strided", "local", "fixed", "graph")),
    *((name, True, torch.bfloat16) for name in ("causal", "marked")),
)
"""Patterns, padding and types of which each compiles a kernel that no other one does."""


@pytest.mark.parametrize(
    ("name", "padded", "dtype"), TWELVE, ids=[f"{name}-{padded}-{str(dtype)[6:]}" for name, padded, dtype in TWELVE]
)
def test_flex_attention_is_fused(name: str, padded: bool, dtype: torch.dtype, calls: list[Pattern]) -> None:
    """No pass allocates as much as a matrix of the scores, which an uncompiled one has in float32."""
    pattern = pattern_of(name)
    inputs = random_inputs(pattern, dtype, 64, padded)
    check_against_dense(pattern, inputs)
    scores = 4 * ROWS * HEADS * QUERIES * inputs.k.size(-2)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = attend(pattern, inputs, scale=SCALE)
    assert torch.cuda.max_memory_allocated() - before < scores
    assert y.dtype == dtype and len(calls) == 2


@dtypes
@pytest.mark.parametrize("width", [16, 32, 128])
def test_flex_attention_of_every_width_equals_dense(width: int, dtype: torch.dtype, calls: list[Pattern]) -> None:
    for name in ("window", "marked"):
        pattern = pattern_of(name)
        check_against_dense(pattern, random_inputs(pattern, dtype, width, padded=name == "marked"))
    assert len(calls) == 2


@dtypes
@pytest.mark.parametrize("width", [8, 24, 80, 256])
def test_other_widths_are_run_in_blocks(width: int, dtype: torch.dtype, calls: list[Pattern]) -> None:
    for name in ("window", "marked", "the past alone"):
        pattern = pattern_of(name)
        inputs = random_inputs(pattern, dtype, width, padded=name == "marked")
        assert not flexible(inputs.q)
        check_against_dense(pattern, inputs)
    assert calls == []


def test_double_precision_is_run_in_blocks(calls: list[Pattern]) -> None:
    pattern = pattern_of("window")
    check_against_dense(pattern, random_inputs(pattern, torch.float64, 64, padded=False))
    assert calls == []


def test_rows_of_many_lengths_are_run_by_few_kernels(calls: list[Pattern]) -> None:
    for length in range(520, 720, 16):
        q, k, v = (torch.randn(1, HEADS, length, 32, device=CUDA, requires_grad=True) for _ in range(3))
        check_against_dense(Band(40, 0), Inputs(q, k, v, None))
    assert len(calls) == 13
    assert len(flex.kernels()) == 2


def only(backend: SDPBackend) -> Inside:
    return lambda: sdpa_kernel(backend)


KERNELS: dict[str, tuple[Inside, tuple[torch.dtype, ...], bool]] = {
    "as PyTorch chooses": (nullcontext, (torch.float32, torch.bfloat16), True),
    "flash": (only(SDPBackend.FLASH_ATTENTION), (torch.bfloat16,), False),
    "memory-efficient": (only(SDPBackend.EFFICIENT_ATTENTION), (torch.float32, torch.bfloat16), True),
    "cuDNN": (only(SDPBackend.CUDNN_ATTENTION), (torch.bfloat16,), False),
    "plain": (only(SDPBackend.MATH), (torch.float32, torch.bfloat16), True),
}
"""The context in which each runs, the dtypes that it supports, and whether it takes a mask."""
CASES: dict[str, tuple[str, int, bool, int, bool]] = {
    "causal": ("causal", 64, False, 0, False),
    "everything": ("everything", 64, False, 0, False),
    "causal with memory": ("causal", 24, False, REMEMBERED, True),
    "causal and padded": ("causal", 24, True, 0, True),
    "causal with memory and padded": ("causal", 24, True, REMEMBERED, True),
    "window": ("window", 24, False, REMEMBERED, True),
    "the past alone": ("the past alone", 24, False, REMEMBERED, True),
}
"""Pattern, width of a head (24 is none of FlexAttention's), whether padded, keys before the queries, whether masked."""
FUSED = [
    (kernel, case, dtype)
    for kernel, (_, dtypes_of_it, takes_masks) in KERNELS.items()
    for case, (*_, masked) in CASES.items()
    for dtype in dtypes_of_it
    if takes_masks or not masked
]


@pytest.mark.parametrize(
    ("kernel", "case", "dtype"), FUSED, ids=[f"{kernel}-{case}-{str(dtype)[6:]}" for kernel, case, dtype in FUSED]
)
def test_every_fused_kernel_equals_dense(
    kernel: str, case: str, dtype: torch.dtype, calls: list[Pattern], monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside, *_), (name, width, padded, remembered, _) = KERNELS[kernel], CASES[case]
    pattern = pattern_of(name)
    check_against_dense(pattern, random_inputs(pattern, dtype, width, padded, remembered), inside)
    assert calls == []


@dtypes
def test_another_sequence_with_padding_is_read_as_dense_attention_reads_it(dtype: torch.dtype) -> None:
    pattern = Band(None, None)
    q, k, v, key_mask = random_inputs(pattern, dtype, 64, padded=True)[:4]
    check_against_dense(pattern, Inputs(q, k, v, key_mask, crossed=True))


@pytest.mark.parametrize("encoded", [False, True], ids=["fused", "scored"])
def test_blocks_that_are_computed_twice_drop_the_same_weights_on_cuda(encoded: bool) -> None:
    check_repeated_dropout(encoded, CUDA)


def check_repeated_dropout(encoded: bool, device: torch.device) -> None:
    """For given weights the output is linear in the values, so that their gradient, through weights made again,
    gives back the sum that the first ones gave. No random number is drawn that the next pass would miss."""
    config = XLConfig().build(Shape(HEADS * 24, HEADS, 16), 24).to(device) if encoded else None
    assert config is None or isinstance(config, Relative)
    inputs = random_inputs(Band(None, 0), torch.float32, 24, padded=False, device=device)
    prepared = with_tables(config, inputs, causal=True) if config else inputs
    y = attend(Band(None, 0), prepared, encoding=config, scale=SCALE, dropout=0.4)
    undropped = attend(Band(None, 0), prepared, encoding=config, scale=SCALE)
    assert (y - undropped).abs().max() > 0.1, "dropout is on"
    total = (y * torch.randn_like(y)).sum()
    before = torch.cuda.get_rng_state() if device == CUDA else torch.get_rng_state()
    (gradient,) = torch.autograd.grad(total, inputs.v)
    after = torch.cuda.get_rng_state() if device == CUDA else torch.get_rng_state()
    assert torch.equal(before, after)
    torch.testing.assert_close((gradient * inputs.v).sum(), total, atol=1e-2, rtol=1e-4)
