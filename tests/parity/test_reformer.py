"""LSH attention equals that of transformers 5, and its duplicates and other buckets are those of reformer-pytorch.

In both, the first chunk of a round looks back at the last chunk of the previous round (of the same round, if there is
one alone): there, only queries outside first chunks are compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from copying import affine, close, copy, randomise
from reformer_pytorch.reformer_pytorch import FullQKAttention, LSHAttention
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention, ReformerModelWithLMHead

from lit_transformers.attention.executors import Inputs
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import LSHConfig
from lit_transformers.mixers.reformer.chunked import Chunked, attend_chunks
from lit_transformers.mixers.reformer.chunks import Chunks, ordered
from lit_transformers.mixers.reformer.lsh import LSH
from lit_transformers.mixers.reformer.shared_qk import attend_others, unit

DIM, HEADS, HEAD_DIM, CHUNK, LENGTH, SEED = 12, 3, 4, 4, 32, 7
EXACT, SINGLE = 1e-9, 1e-6
"""reformer-pytorch takes the logarithm of its counts in single precision."""


def reference(rounds: int, causal: bool, **knobs: Any) -> LSHSelfAttention:
    options = {"lsh_attn_chunk_length": CHUNK, "num_buckets": 6, "lsh_num_chunks_before": 1} | knobs
    config = ReformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_head_size=HEAD_DIM, attn_layers=["lsh"],
        num_hashes=rounds, hash_seed=SEED, is_decoder=causal, lsh_attention_probs_dropout_prob=0.0, **options,
    )  # fmt: skip
    layer: LSHSelfAttention = LSHSelfAttention(config)  # type: ignore[no-untyped-call]
    return layer


def ours(theirs: LSHSelfAttention, **knobs: Any) -> LSH:
    """The same layer: the authors' way, without duplicates corrected and with other buckets seen."""
    buckets = theirs.num_buckets if isinstance(theirs.num_buckets, int) else tuple(theirs.num_buckets)
    options = {
        "chunks": "by_sort", "across_buckets": True, "correct_duplicates": False, "chunk_length": CHUNK, "seed": SEED,
        "rounds": theirs.num_hashes, "buckets": buckets, "back": theirs.num_chunks_before,
        "ahead": theirs.num_chunks_after, "head_dim": HEAD_DIM,
    }  # fmt: skip
    layer = LSHConfig(**(options | knobs)).build(Shape(DIM, HEADS, LENGTH))
    weights = randomise(theirs, std=1.0)
    copy(layer.query, **affine(weights, "query_key"))
    copy(layer.value, **affine(weights, "value"))
    copy(layer.merge, weight=torch.eye(DIM))
    return layer


def by_head(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


@pytest.mark.parametrize("buckets", [6, [2, 4]])
@pytest.mark.parametrize("padded", [True, False])
def test_buckets_equal_transformers(buckets: Any, padded: bool) -> None:
    theirs = reference(3, True, num_buckets=buckets)
    layer, x = ours(theirs), torch.randn(2, LENGTH, DIM)
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH - 5], [LENGTH - 10]]) if padded else None
    q = by_head(layer.query(x))
    buckets_of_ours = layer.hash(q, Context(torch.arange(LENGTH).expand(2, LENGTH), True, padding_mask))
    expected = theirs._hash_vectors(q, 3, padding_mask).view_as(buckets_of_ours)  # type: ignore[no-untyped-call]
    bucket_count = 6 if buckets == 6 else 8
    offset = torch.arange(3)[:, None] * (bucket_count + padded)
    assert torch.equal(buckets_of_ours, expected - offset)
    assert len(buckets_of_ours.unique()) == bucket_count + padded


def compare(layer: LSH, theirs: LSHSelfAttention, causal: bool, padding_mask: Tensor | None = None) -> None:
    """Outputs, and gradients of those compared, of the same buckets.

    In double precision, for the reference adds up weights that are 1.002 in single where all logits are -1e5; and
    without the 1e-6 that it adds to the mean square of a key.
    """
    layer, theirs = layer.double(), theirs.double()
    theirs._len_norm = partial(theirs._len_norm, epsilon=0.0)  # type: ignore[method-assign]
    x, ctx = (
        torch.randn(2, LENGTH, DIM, dtype=torch.float64),
        Context(torch.arange(LENGTH).expand(2, -1), causal, padding_mask),
    )
    x.requires_grad_()
    is_compared = (
        torch.ones(2, LENGTH, HEADS, dtype=torch.bool)
        if padding_mask is None
        else padding_mask[..., None].expand(-1, -1, HEADS)
    )
    reference_buckets = None
    if layer.rounds is not None:
        buckets = layer.hash(by_head(layer.query(x)), ctx)
        reference_buckets = (buckets + 100 * torch.arange(layer.rounds)[:, None]).flatten(2)
        if theirs.num_chunks_before or theirs.num_chunks_after:
            is_compared = is_compared & inner(buckets).transpose(1, 2)
    assert is_compared.any(dim=1).all()
    mask = None if padding_mask is None else padding_mask.long()
    expected = theirs(x, attention_mask=mask, buckets=reference_buckets).hidden_states  # type: ignore[no-untyped-call]
    y, compared_channels = layer(x, ctx).y, is_compared.repeat_interleave(HEAD_DIM, dim=-1)
    close(y[compared_channels], expected[compared_channels], EXACT)
    direction = torch.randn_like(y) * compared_channels
    gradient, expected_gradient = (torch.autograd.grad((z * direction).sum(), x)[0] for z in (y, expected))
    close(gradient, expected_gradient, EXACT)


def inner(buckets: Tensor) -> Tensor:
    """(b, h, t): True at tokens that stand, in no round, in the first or the last chunk."""
    positions = buckets.argsort(dim=-1, stable=True).argsort(dim=-1)
    return ((positions >= CHUNK) & (positions < buckets.size(-1) - CHUNK)).all(dim=2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("around", [(0, 0), (1, 0), (1, 1)])
def test_rounds_of_chunks_equal_transformers(causal: bool, rounds: int, around: tuple[int, int]) -> None:
    theirs = reference(rounds, causal, lsh_num_chunks_before=around[0], lsh_num_chunks_after=around[1])
    compare(ours(theirs), theirs, causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("before", [0, 1])
def test_padding_equals_transformers(causal: bool, before: int) -> None:
    theirs = reference(2, causal, lsh_num_chunks_before=before)
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH - 5], [LENGTH - 10]])
    compare(ours(theirs), theirs, causal, padding_mask)


@pytest.mark.parametrize("causal", [True, False])
def test_shared_queries_and_keys_alone_equal_transformers(causal: bool) -> None:
    """Which attends in full where a row is no longer than a chunk."""
    theirs = reference(1, causal, lsh_attn_chunk_length=LENGTH, lsh_num_chunks_before=0)
    compare(ours(theirs, rounds=None), theirs, causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("duplicates", [True, False])
def test_duplicates_and_other_buckets_equal_reformer_pytorch(causal: bool, across: bool, duplicates: bool) -> None:
    theirs = LSHAttention(
        bucket_size=CHUNK, n_hashes=4, causal=causal, allow_duplicate_attention=duplicates,
        attend_across_buckets=across,
    )  # fmt: skip
    torch.manual_seed(0)
    rows, rounds = 16, 4
    q, v = torch.randn(2, rows, LENGTH, HEAD_DIM, dtype=torch.float64)
    q.requires_grad_(), v.requires_grad_()
    expected, _, flat_buckets = theirs(q, v)
    buckets = flat_buckets.view(rows, rounds, LENGTH)[:, None] % (LENGTH // CHUNK)
    order = ordered(buckets, Chunks(CHUNK, back=1, ahead=0, by="by_sort", across=across), None)
    inputs = Inputs(q[:, None], unit(q)[:, None], v[:, None], None)
    y = attend_chunks(Chunked(order, causal, HEAD_DIM**-0.5, 0.0, not duplicates, None), inputs)[:, 0]
    is_compared = inner(buckets)[:, 0, :, None].expand_as(y)
    assert is_compared.any()
    direction = torch.randn_like(y) * is_compared
    close(y[is_compared], expected[is_compared], SINGLE)
    for leaf in (q, v):
        gradient, expected_gradient = (
            torch.autograd.grad((z * direction).sum(), leaf, retain_graph=True) for z in (y, expected)
        )
        close(gradient[0], expected_gradient[0], SINGLE)
    assert torch.allclose(y, expected, atol=SINGLE) != across, "theirs wraps around, into other buckets"


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_of_shared_queries_and_keys_equals_reformer_pytorch(causal: bool) -> None:
    q, v = torch.randn(2, 3, LENGTH, HEAD_DIM, dtype=torch.float64)
    expected, *_ = FullQKAttention(causal=causal)(q, v)
    inputs = Inputs(q[:, None], unit(q)[:, None], v[:, None], None)
    y = attend_others(inputs, causal=causal, encoding=None, scale=HEAD_DIM**-0.5, dropout=0.0)
    close(y[:, 0], expected, 1e-10)


@torch.no_grad()
def test_hashed_layers_of_a_causal_reformer_let_later_symbols_change_earlier_logits() -> None:
    """Should this fail, a causal Reformer may be mapped: it is refused because its layers see later symbols."""
    symbols = torch.arange(8 * LENGTH).view(8, LENGTH) * 7 % 37
    changed = symbols.clone()
    changed[:, -8:] = (changed[:, -8:] + 5) % 37
    for layers, leaks in ((["local"] * 2, False), (["lsh"] * 2, True)):
        config = ReformerConfig(
            vocab_size=37, hidden_size=DIM, num_attention_heads=HEADS, attention_head_size=HEAD_DIM, attn_layers=layers,
            axial_pos_shape=[8, 8], axial_pos_embds_dim=[5, 7], feed_forward_size=20, is_decoder=True, use_cache=False,
            lsh_attn_chunk_length=CHUNK, local_attn_chunk_length=CHUNK, num_buckets=4, hash_seed=SEED,
        )  # fmt: skip
        model = ReformerModelWithLMHead(config).eval()  # type: ignore[no-untyped-call]
        randomise(model, std=0.5)
        change = (model(symbols).logits - model(changed).logits)[:, :-8].abs().max()
        assert bool(change > 1e-3) == leaks
