"""LSH attention equals its definition pair by pair, tells nothing of the future, and is full where all may meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocations import Allocations
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.executors import Inputs
from lit_transformers.config import ConfigError
from lit_transformers.encodings import LearnedRelativeConfig, RotaryConfig
from lit_transformers.encodings.learned_relative import LearnedRelative
from lit_transformers.mixer import Context, Shape, Tape
from lit_transformers.mixers import LSHConfig
from lit_transformers.mixers.reformer import chunked
from lit_transformers.mixers.reformer.chunked import Chunked, attend_chunks
from lit_transformers.mixers.reformer.chunks import Chunks, ordered
from lit_transformers.mixers.reformer.hashing import digits, hashed, rotations
from lit_transformers.mixers.reformer.lsh import LSH
from lit_transformers.stacks import ReversibleConfig, StackInput
from lit_transformers.stacks.block import BlockConfig

DIM, HEADS, HEAD_DIM, LENGTH = 8, 2, 4, 29
SMALL: dict[str, Any] = {"rounds": 3, "chunk_length": 3, "buckets": 4, "seed": 0}
CHUNKS: dict[str, dict[str, Any]] = {
    "by_rank": {},
    "by_rank, two back": {"back": 2},
    "by_rank, none back": {"back": 0},
    "by_sort": {"chunks": "by_sort"},
    "by_sort across buckets": {"chunks": "by_sort", "across_buckets": True, "ahead": 0},
    "by_sort, two back, one ahead": {"chunks": "by_sort", "back": 2, "ahead": 1},
}


def build(**knobs: Any) -> LSH:
    layer = LSHConfig(**(SMALL | knobs)).build(Shape(DIM, HEADS, LENGTH)).double()
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def context(length: int = LENGTH, causal: bool = True, padding_mask: Tensor | None = None, rows: int = 1) -> Context:
    return Context(torch.arange(length).expand(rows, length), causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sees(layer: LSH, buckets: list[int], causal: bool, padding_mask: list[bool]) -> list[set[int]]:
    """The keys that each query sees in one round, itself among them, by the definition in words."""
    chunks = layer.chunks(causal)
    order = sorted(range(len(buckets)), key=lambda token: (buckets[token], token))
    sorted_position = {token: index for index, token in enumerate(order)}
    rank = {token: sum(buckets[earlier] == buckets[token] for earlier in range(token)) for token in order}
    visible_keys = []
    for i in range(len(buckets)):
        keys = set()
        for j in range(len(buckets)):
            if chunks.by == "by_rank":
                distance = rank[i] - rank[j]
                within_reach = -chunks.ahead * chunks.length <= distance <= chunks.back * chunks.length
            else:
                distance = sorted_position[i] // chunks.length - sorted_position[j] // chunks.length
                within_reach = -chunks.ahead <= distance <= chunks.back
            same_bucket = chunks.across or buckets[i] == buckets[j]
            if i == j or (within_reach and same_bucket and padding_mask[j] and (j <= i or not causal)):
                keys.add(j)
        visible_keys.append(keys)
    return visible_keys


def by_definition(layer: LSH, x: Tensor, causal: bool, padding_mask: list[bool]) -> Tensor:
    """One sequence x (t, d), pair by pair: o_i = sum over rounds and keys of exp(s_ij - log N_ij - z_i) v_j."""
    q, v = (linear(x).view(-1, HEADS, HEAD_DIM).transpose(0, 1) for linear in (layer.query, layer.value))
    buckets_by_head = layer.hash(q[None], context(len(x), causal, torch.tensor([padding_mask])))[0]
    k = q / q.norm(dim=-1, keepdim=True)
    if layer.rotary is not None:
        q, k = (layer.rotary.rotate(part, torch.arange(len(x))) for part in (q, k))
    scores = q @ k.mT * layer.scale
    if isinstance(layer.relative, LearnedRelative):
        distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
        scores = scores + layer.relative.tables(distances.flatten(), causal)[0].view_as(scores)
    outputs = []
    for head in range(HEADS):
        rounds = [sees(layer, round_buckets.tolist(), causal, padding_mask) for round_buckets in buckets_by_head[head]]
        for i in range(len(x)):
            pairs = [(round_index, j) for round_index, visible_keys in enumerate(rounds) for j in visible_keys[i]]
            other_pairs = [(round_index, j) for round_index, j in pairs if j != i] or pairs
            repeats = [
                sum(j in visible_keys[i] for visible_keys in rounds) if layer.config.correct_duplicates else 1
                for _, j in other_pairs
            ]
            keys = [j for _, j in other_pairs]
            weights = (scores[head, i, keys] - torch.tensor(repeats).double().log()).softmax(dim=-1)
            outputs.append(weights @ v[head, keys])
    y = torch.stack(outputs).view(HEADS, len(x), HEAD_DIM).transpose(0, 1)
    return layer.merge(y.flatten(1))


def same(ours: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
def test_outputs_and_gradients_equal_the_definition(chunks: str, causal: bool, corrected: bool) -> None:
    layer, x = build(**CHUNKS[chunks], correct_duplicates=corrected), noise(1, LENGTH, DIM).requires_grad_()
    ours, expected = layer(x, context(causal=causal)).y[0], by_definition(layer, x[0], causal, [True] * LENGTH)
    same(ours, expected)
    leaves, direction = [x, *layer.parameters()], torch.randn_like(ours)
    gradients = (torch.autograd.grad((y * direction).sum(), leaves) for y in (ours, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        same(gradient, expected_gradient)


@pytest.mark.parametrize(
    "knobs", [{"encoding": RotaryConfig()}, {"encoding": LearnedRelativeConfig()}, {"scaled": True}]
)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunks", ["by_rank", "by_sort across buckets"])
def test_positions_in_the_scores_and_padding_equal_the_definition(
    knobs: dict[str, Any], causal: bool, chunks: str
) -> None:
    layer, x = build(**knobs, **CHUNKS[chunks]), noise(1, LENGTH, DIM)
    padding_mask = torch.rand(LENGTH) < 0.7
    ours = layer(x, context(causal=causal, padding_mask=padding_mask[None])).y[0]
    same(ours[padding_mask], by_definition(layer, x[0], causal, padding_mask.tolist())[padding_mask])


@pytest.mark.parametrize("chunks", CHUNKS)
def test_gradients_equal_finite_differences(chunks: str) -> None:
    """Of the steps after the hash: the buckets stay those of x."""
    layer, x = build(**CHUNKS[chunks]), noise(2, 7, DIM)
    tape = Tape()
    ctx = context(7, rows=2)._replace(tape=tape)
    layer(x, ctx)

    def attend(x: Tensor) -> Tensor:
        tape.rewind()
        y: Tensor = layer(x, ctx).y
        return y

    assert torch.autograd.gradcheck(attend, x.requires_grad_(), eps=1e-6, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("encoding", [None, LearnedRelativeConfig()])
def test_pieces_computed_twice_equal_one_that_is_kept(monkeypatch: pytest.MonkeyPatch, encoding: Any) -> None:
    layer, x = build(encoding=encoding), noise(2, LENGTH, DIM).requires_grad_()
    results = []
    for pairs in (1, 2**30):
        monkeypatch.setattr(chunked, "PAIRS", pairs)
        y = layer(x, context(rows=2)).y
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for result, expected in zip(*results, strict=True):
        same(result, expected)


@pytest.mark.slow
def test_dropout_is_drawn_again_alike_and_not_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "PAIRS", 1)
    layer, x = build(dropout=0.5, buckets=1, rounds=1), noise(1, 5, DIM)
    expected = build(buckets=1, rounds=1)(x, context(5)).y
    assert not torch.allclose(layer(x, context(5)).y, expected)
    same(layer.eval()(x, context(5)).y, expected)
    layer.train()

    def attend(values: Tensor) -> Tensor:
        torch.manual_seed(0)
        y: Tensor = torch.func.functional_call(layer, {"value.weight": values}, (x, context(5))).y
        return y

    weight = layer.value.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(attend, weight, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("rounds", [None, 1, 3])
def test_a_token_sees_itself_where_it_sees_no_other_and_nowhere_else(rounds: int | None) -> None:
    """Trap: minus infinity for a query's own key would make the first token no number."""
    layer, x = build(rounds=rounds, buckets=1), noise(1, LENGTH, DIM).requires_grad_()
    y, first_output = layer(x, context()).y, layer.merge(layer.value(x[:, 0]))
    same(y[:, 0], first_output)
    same(y[:, 1], first_output)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_where_all_may_meet_it_is_full_attention_of_shared_queries_and_keys(causal: bool) -> None:
    layer, x = build(rounds=2, buckets=1, chunk_length=LENGTH), noise(2, LENGTH, DIM)
    full = build(rounds=None)
    ours, expected = (mixer(x, context(causal=causal, rows=2)).y for mixer in (layer, full))
    same(ours, expected)
    q, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (full.query, full.value))
    scores = q @ F.normalize(q, dim=-1).mT
    visible = ~torch.eye(LENGTH, dtype=torch.bool)
    if causal:
        visible = visible.tril()
        visible[0, 0] = True
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    same(expected, full.merge((weights @ v).transpose(1, 2).flatten(2)))


def test_without_duplicates_every_key_counts_once_however_many_rounds_show_it() -> None:
    x = noise(1, LENGTH, DIM)
    outputs = {
        (rounds, corrected): build(rounds=rounds, buckets=1, correct_duplicates=corrected)(x, context()).y
        for rounds in (1, 3)
        for corrected in (True, False)
    }
    for y in outputs.values():
        same(y, outputs[1, True])
    corrected_y, uncorrected_y = (build(correct_duplicates=corrected)(x, context()).y for corrected in (True, False))
    assert not torch.allclose(corrected_y, uncorrected_y)


def change_of_earlier_outputs(knobs: dict[str, Any], last: int) -> float:
    """By how much other tokens after ``last`` change the outputs up to it."""
    layer, largest_change = build(**knobs), 0.0
    for _ in range(20):
        before = noise(1, LENGTH, DIM)
        after = torch.cat([before[:, : last + 1], noise(1, LENGTH - last - 1, DIM)], dim=1)
        y, y_changed = (layer(x, context()).y[:, : last + 1] for x in (before, after))
        largest_change = max(largest_change, (y - y_changed).abs().max().item())
    return largest_change


@pytest.mark.slow
def test_chunks_of_what_is_sorted_tell_of_the_future_and_ranks_do_not() -> None:
    assert change_of_earlier_outputs({}, last=20) < 1e-12
    for across in (True, False):
        assert change_of_earlier_outputs({"chunks": "by_sort", "across_buckets": across, "ahead": 0}, last=20) > 1e-2


def test_the_first_chunk_of_a_round_looks_into_no_other_chunk() -> None:
    """Trap: where rounds stand in one row, the first chunk of each looks back at the last of the one before."""
    q, k, v = (noise(1, 1, 6, HEAD_DIM).requires_grad_() for _ in range(3))
    buckets = torch.tensor([[[[0, 0, 0, 1, 1, 1], [0, 1, 0, 2, 3, 2]]]])
    order = ordered(buckets, Chunks(3, back=1, ahead=0, by="by_sort", across=True), None)
    y = attend_chunks(Chunked(order, False, 1.0, 0.0, False, None), Inputs(q, k, v, None))[0, 0]
    (first_round_gradient,) = torch.autograd.grad(y[:3].square().sum(), v, retain_graph=True)
    assert not first_round_gradient[0, 0, 3:].any()
    (second_round_gradient,) = torch.autograd.grad(y[3:].square().sum(), v)
    assert second_round_gradient.any(dim=-1).all()


def test_no_gradient_flows_through_buckets_nor_codes() -> None:
    layer, q = build(), noise(1, HEADS, LENGTH, HEAD_DIM).requires_grad_()
    buckets = layer.hash(q, context())
    assert not buckets.requires_grad and not buckets.is_floating_point()


def test_vectors_that_point_the_same_way_share_a_bucket_and_opposite_ones_never_do() -> None:
    rotation_matrices = rotations(1, 16, 64, (8,), seed=0, device=torch.device("cpu"))
    x, noise_vectors = torch.randn(2, 1, 1, 200, 16)
    buckets = hashed(x, rotation_matrices, (8,))

    def shared(y: Tensor) -> float:
        return (hashed(y, rotation_matrices, (8,)) == buckets).double().mean().item()

    assert shared(7 * x) == 1
    assert shared(-x) == 0
    assert 0.85 > shared(x + 0.3 * noise_vectors) > shared(x + noise_vectors) > shared(noise_vectors) > 0.1
    assert set(buckets.unique().tolist()) == set(range(8))


def test_digits_make_a_number() -> None:
    rotation_matrices = rotations(1, 16, 3, (4, 6), seed=0, device=torch.device("cpu"))
    x = torch.randn(1, 1, 500, 16)
    low_digits, high_digits = hashed(x, rotation_matrices[..., :2], (4,)), hashed(x, rotation_matrices[..., 2:], (6,))
    assert torch.equal(hashed(x, rotation_matrices, (4, 6)), low_digits + 4 * high_digits)
    assert set(hashed(x, rotation_matrices, (4, 6)).unique().tolist()) == set(range(24))
    assert digits(4096, 64) == (128,)
    first, second = digits(65_536, 64)
    assert first * second >= 2048 and first + second < 100 and first % 2 == second % 2 == 0


def test_rounds_and_hashing_own_no_weight() -> None:
    weights = build().state_dict()
    for knobs in ({"rounds": 8}, {"rounds": None}, {"chunks": "by_sort"}, {"chunk_length": 7, "buckets": None}):
        build(**knobs).load_state_dict(weights)


def test_more_rounds_come_nearer_to_full_attention() -> None:
    x = noise(4, LENGTH, DIM)
    full = build(rounds=None)(x, context(rows=4)).y
    distances = [(build(rounds=rounds)(x, context(rows=4)).y - full).square().mean().item() for rounds in (1, 2, 4, 16)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < distances[0] / 5


@pytest.mark.parametrize("encoding", [None, LearnedRelativeConfig()])
def test_memory_grows_with_the_length_and_not_with_its_square(encoding: Any) -> None:
    layer, peaks = build(encoding=encoding, chunk_length=32, buckets=None, rounds=2).float(), []
    for length in (4096, 8192):
        x = torch.randn(1, length, DIM, requires_grad=True)
        with Allocations() as allocations:
            layer(x, context(length)).y.sum().backward()
        peaks.append(allocations.peak)
    assert peaks[1] < 2.2 * peaks[0]


def test_a_seed_fixes_the_rotations_and_draws_nothing_from_the_common_generator() -> None:
    layer, x = build(), noise(1, LENGTH, DIM)
    before = torch.get_rng_state()
    first_y, second_y = layer(x, context()).y, layer(x, context()).y
    assert torch.equal(first_y, second_y)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.allclose(first_y, build(seed=5)(x, context()).y)


def test_without_a_seed_training_hashes_anew_and_evaluation_alike() -> None:
    layer, x = build(seed=None), noise(1, LENGTH, DIM)
    assert not torch.allclose(layer(x, context()).y, layer(x, context()).y)
    layer.eval()
    assert torch.equal(layer(x, context()).y, layer(x, context()).y)


def test_a_second_computation_of_a_pass_takes_the_buckets_of_the_first() -> None:
    layer, x, tape = build(seed=None), noise(1, LENGTH, DIM), Tape()
    ctx = context()._replace(tape=tape)
    first = layer(x, ctx).y
    tape.rewind()
    assert torch.equal(first, layer(x, ctx).y)
    tape.rewind()
    perturbed = layer(x + 1e-9 * noise(1, LENGTH, DIM), ctx).y
    assert (perturbed - first).abs().max() < 1e-6


def reversible(recompute: bool) -> nn.Module:
    config = BlockConfig(mixer=LSHConfig(**(SMALL | {"seed": None})))
    shape = Shape(DIM, HEADS, LENGTH, 0, 3, shared={})
    torch.manual_seed(0)
    return (
        ReversibleConfig(recompute=recompute)
        .build(shape, lambda layer, _: config.build_block(shape._replace(layer=layer), "causal"), StackInput())
        .double()
    )


def test_a_reversible_stack_that_recomputes_learns_what_one_that_keeps_learns() -> None:
    """Though its rotations are fresh in every pass and its inputs come back but nearly."""
    x, results = noise(2, LENGTH, DIM).requires_grad_(), []
    for recompute in (True, False):
        stack = reversible(recompute)
        y = stack(x, context(rows=2)).y
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *stack.parameters()])])
    for result, expected in zip(*results, strict=True):
        same(result, expected, 1e-8)


@pytest.mark.parametrize(
    ("knobs", "mode", "reason"),
    [
        ({"chunks": "by_sort"}, "causal", "chunks: by_rank"),
        ({"ahead": 1}, "causal", "mixer.ahead: .* ahead: null"),
        ({}, "cross", "queries are the keys"),
    ],
)
def test_what_would_leak_or_means_nothing_is_refused(knobs: dict[str, Any], mode: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LSHConfig(**knobs).require(mode)


def test_shared_queries_and_keys_alone_leak_nothing_however_they_would_be_cut() -> None:
    LSHConfig(rounds=None, chunks="by_sort", ahead=1).require("causal")


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"buckets": 3}, "even"),
        ({"buckets": (4, 5)}, "even"),
        ({"buckets": ()}, "write null"),
        ({"across_buckets": True}, "set chunks: by_sort"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_impossible_configs_are_refused(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LSHConfig(**knobs)
