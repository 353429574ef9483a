"""Compressive memory equals its algorithm written vector by vector, and trains the weights that the paper trains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_compressive import Slow
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.encodings import EncodingConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.mixer import Context, Shape, detach, empty_rows
from lit_transformers.mixers import AttentionConfig, CompressiveConfig
from lit_transformers.mixers.compressive.compressive import Compressive

DIM, HEADS = 4, 2
FUNCTIONS: dict[str, dict[str, Any]] = {
    "max": {"function": "max", "auxiliary": "none"},
    "mean": {"function": "mean", "auxiliary": "none"},
    "most used": {"function": "most_used", "auxiliary": "none"},
    "convolution, task": {"function": "convolution", "auxiliary": "none"},
    "convolution, attention": {"function": "convolution", "auxiliary": "attention_reconstruction"},
    "convolution, decoder": {"function": "convolution", "auxiliary": "auto_encoding"},
    "dilated, task": {"function": "dilated", "auxiliary": "none"},
    "dilated, attention": {"function": "dilated", "auxiliary": "attention_reconstruction"},
}
AUXILIARY = {name: fields for name, fields in FUNCTIONS.items() if fields["auxiliary"] != "none"}
every_function = pytest.mark.parametrize("fields", FUNCTIONS.values(), ids=FUNCTIONS)
every_loss = pytest.mark.parametrize("fields", AUXILIARY.values(), ids=AUXILIARY)


def layer(**fields: Any) -> Compressive:
    torch.manual_seed(0)
    mixer = CompressiveConfig(**fields).build(Shape(DIM, HEADS, 16)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def context(x: Tensor, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(x.size(1)).expand(x.size(0), -1), True, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class SegmentsOutput(NamedTuple):
    """The output of a mixer over several segments, its losses, and the state it left."""

    y: Tensor
    losses: list[Tensor]
    state: Any


def run_in_segments(
    mixer: Compressive, x: Tensor, cuts: Sequence[int], state: Any = None, detached: bool = False
) -> SegmentsOutput:
    """x in segments that end at ``cuts``; ``detached``: whether gradients are cut between them."""
    outputs, losses = [], []
    for start, stop in pairwise([0, *cuts, x.size(1)]):
        mixed = mixer(x[:, start:stop], context(x[:, start:stop]), detach(state) if detached else state)
        outputs.append(mixed.y)
        losses += mixed.aux.values()
        state = mixed.state
    return SegmentsOutput(torch.cat(outputs, dim=1), losses, state)


@every_function
@pytest.mark.parametrize(
    ("rate", "memory", "slots", "cuts"),
    [
        (2, 3, 2, [4, 8, 9]),
        (4, 0, 2, [2, 9]),
        (3, 4, 2, [5, 6, 11]),
        (2, 0, 3, [3, 6, 9]),
        (1, 2, 3, [3, 6]),
        (3, 2, 5, [12]),
    ],
)
def test_several_segments_equal_the_algorithm(
    fields: dict[str, Any], rate: int, memory: int, slots: int, cuts: list[int]
) -> None:
    """Outputs, losses and the gradients of both, where a task cuts gradients between segments (T-CT1, T-CT2, T-CT7)."""
    fields = fields | {"rate": rate, "memory": memory, "compressed_memory": slots}
    mixer, x = layer(**fields), noise(2, 14, DIM)
    result = run_in_segments(mixer, x, cuts, detached=True)
    outputs, losses = [], []
    for row in x:
        slow = Slow(mixer, CompressiveConfig(**fields))
        segments = [slow.segment(row[start:stop]) for start, stop in pairwise([0, *cuts, 14])]
        outputs.append(torch.cat([y for y, _ in segments]))
        losses.append([loss for _, loss in segments if loss is not None])
    expected_y = torch.stack(outputs)
    torch.testing.assert_close(result.y, expected_y, atol=1e-11, rtol=1e-11)
    expected = (
        torch.stack([torch.stack(row_losses).mean() for row_losses in zip(*losses, strict=True)]).sum()
        if losses[0]
        else 0
    )
    torch.testing.assert_close(torch.as_tensor(sum(result.losses)), torch.as_tensor(expected), atol=1e-11, rtol=1e-11)
    direction, leaves = noise(*expected_y.shape), list(mixer.parameters())
    gradients, expected_gradients = (
        torch.autograd.grad((y * direction).sum() + loss, leaves, materialize_grads=True)
        for y, loss in ((result.y, sum(result.losses)), (expected_y, expected))
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-10)


@every_loss
def test_an_auxiliary_loss_trains_the_compression_and_nothing_else(fields: dict[str, Any]) -> None:
    """T-CT3: h, the old memory and the maps of attention have no part in it."""
    mixer, x = layer(memory=2, compressed_memory=2, rate=2, **fields), noise(2, 8, DIM).requires_grad_()
    sum(run_in_segments(mixer, x, [4]).losses).backward()  # type: ignore[union-attr]
    assert x.grad is None
    trained = {name for name, p in mixer.named_parameters() if p.grad is not None and p.grad.any()}
    auxiliary_names = {
        name for name, _ in mixer.named_parameters() if name.startswith(("compressor", "reconstruction"))
    }
    assert trained == auxiliary_names


@every_loss
def test_the_task_trains_everything_but_a_compression_that_has_a_loss_of_its_own(fields: dict[str, Any]) -> None:
    mixer, x = layer(memory=2, compressed_memory=2, rate=2, **fields), noise(2, 12, DIM)
    run_in_segments(mixer, x, [4, 8]).y.square().sum().backward()
    trained = {name for name, p in mixer.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {name for name, _ in mixer.named_parameters() if name.startswith("reader")}


@pytest.mark.parametrize("function", ["convolution", "dilated"])
def test_without_a_loss_of_its_own_the_task_trains_the_compression_across_cut_gradients(function: str) -> None:
    mixer = layer(memory=2, compressed_memory=2, rate=2, function=function, auxiliary="none")
    run_in_segments(mixer, noise(2, 12, DIM), [4, 8], detached=True).y.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in mixer.parameters())


@every_function
def test_keys_and_values_train_in_every_segment(fields: dict[str, Any]) -> None:
    """T-CT1: in a known port they stop after the first step with memory, for good."""
    mixer, state = layer(memory=2, compressed_memory=2, rate=2, **fields), None
    for _ in range(4):
        result = run_in_segments(mixer, noise(2, 4, DIM), [], state, detached=True)
        state = result.state
        mixer.zero_grad()
        result.y.square().sum().backward()
        for linear in (mixer.reader.key, mixer.reader.value):
            assert linear.weight.requires_grad and linear.weight.grad is not None and linear.weight.grad.any()


@every_function
def test_every_parameter_has_a_gradient_in_the_first_segment_too(fields: dict[str, Any]) -> None:
    """If only of zero: DDP waits for those that have none."""
    mixer = layer(memory=8, compressed_memory=2, rate=2, **fields)
    result = run_in_segments(mixer, noise(2, 4, DIM), [])
    (result.y.sum() + sum(result.losses)).backward()
    assert [name for name, p in mixer.named_parameters() if p.grad is None] == []


@given(
    cuts=st.sets(st.integers(1, 29), max_size=12),
    memory=st.integers(0, 6),
    slots=st.integers(1, 5),
    rate=st.integers(1, 4),
    length=st.integers(1, 30),
)
@settings(max_examples=60)
def test_what_leaves_is_compressed_once_in_order_and_the_oldest_slots_go(
    cuts: set[int], memory: int, slots: int, rate: int, length: int
) -> None:
    """T-CT2, T-CT5: for any lengths of segments, nothing is lost, doubled or padded with unread vectors."""
    mixer = layer(memory=memory, compressed_memory=slots, rate=rate, function="mean", auxiliary="none")
    x = torch.arange(1, length + 1, dtype=torch.float64)[None, :, None].expand(1, -1, DIM)
    state = run_in_segments(mixer, x, sorted(cut for cut in cuts if cut < length)).state
    evicted = max(0, length - memory) // rate * rate
    means = x[0, :evicted, 0].unflatten(0, (-1, rate)).mean(dim=1)[-slots:] if evicted else x[0, :0, 0]
    hidden, key_mask = state["hidden"][0, :, 0], state["key_mask"][0]
    assert hidden[key_mask].tolist() == pytest.approx([*means.tolist(), *range(evicted + 1, length + 1)])
    assert len(hidden) == slots + length - evicted <= slots + max(length, memory + rate - 1)
    assert not key_mask[: slots - len(means)].any() and key_mask[slots - len(means) :].all()


@every_function
@pytest.mark.parametrize("encoding", [None, XLConfig()], ids=["plain", "xl"])
def test_reading_without_gradients_says_the_same_far_beyond_memory(
    fields: dict[str, Any], encoding: EncodingConfig | None
) -> None:
    """There keys and values are kept, here inputs are projected anew."""
    mixer = layer(memory=3, compressed_memory=2, rate=2, encoding=encoding, bias=True, **fields)
    x, cuts = noise(2, 20, DIM), [3, 4, 5, 11, 12, 17]
    expected = run_in_segments(mixer, x, cuts)
    with torch.no_grad():
        result = run_in_segments(mixer, x, cuts)
        torch.testing.assert_close(result.y, expected.y, atol=1e-11, rtol=1e-11)
        assert "keys" in result.state
        mixed = run_in_segments(mixer, x[:, 5:], [6, 7, 12], run_in_segments(mixer, x[:, :5], [3, 4]).state)
        torch.testing.assert_close(mixed.y, expected.y[:, 5:], atol=1e-11, rtol=1e-11)


@every_function
@pytest.mark.parametrize("grad", [True, False])
def test_a_lane_emptied_after_its_slots_were_filled_starts_anew(fields: dict[str, Any], grad: bool) -> None:
    mixer, first, second = layer(memory=3, compressed_memory=2, rate=2, **fields), noise(2, 12, DIM), noise(2, 12, DIM)
    with torch.set_grad_enabled(grad):
        state = run_in_segments(mixer, first, [6]).state
        emptied_state = empty_rows(state, torch.tensor([True, False]))
        continued_y = run_in_segments(mixer, second, [5, 6], emptied_state).y
        torch.testing.assert_close(
            continued_y[1], run_in_segments(mixer, second, [5, 6], state).y[1], atol=1e-11, rtol=1e-11
        )
        expected = run_in_segments(mixer, second[:1, :5], []).y[0]
    torch.testing.assert_close(continued_y[0, :5], expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize(
    "encoding", [None, XLConfig(), RotaryConfig(), ShawConfig(distance=3)], ids=lambda e: getattr(e, "kind", "none")
)
def test_positions_go_on_over_slots_memory_and_segment(encoding: EncodingConfig | None) -> None:
    """T-CT4: reading is plain attention with slots and memory as its memory."""
    mixer = layer(memory=3, compressed_memory=2, rate=2, function="mean", auxiliary="none", encoding=encoding)
    attention = AttentionConfig(encoding=encoding, memory=5).build(Shape(DIM, HEADS, 16)).double()
    attention.load_state_dict(mixer.reader.state_dict())
    state, x = run_in_segments(mixer, noise(2, 11, DIM), [6]).state, noise(2, 4, DIM)
    assert state["key_mask"].all() and state["hidden"].size(1) == 5
    torch.testing.assert_close(mixer(x, context(x), state).y, attention(x, context(x), dict(state)).y)


@pytest.mark.parametrize("function", ["mean", "max", "most_used"])
@pytest.mark.parametrize("encoding", [None, XLConfig()], ids=["plain", "xl"])
def test_a_rate_of_one_is_a_longer_memory(function: str, encoding: EncodingConfig | None) -> None:
    mixer = layer(memory=3, compressed_memory=4, rate=1, function=function, auxiliary="none", encoding=encoding)
    attention = AttentionConfig(encoding=encoding, memory=7).build(Shape(DIM, HEADS, 16)).double()
    attention.load_state_dict(mixer.reader.state_dict())
    x, state = noise(2, 20, DIM), None
    for segment in x.split(5, dim=1):
        mixed = attention(segment, context(segment), state)
        state = mixed.state
    torch.testing.assert_close(run_in_segments(mixer, x, [5, 10, 15]).y[:, 15:], mixed.y, atol=1e-11, rtol=1e-11)


def test_the_most_used_are_kept_as_they_were_and_in_their_order() -> None:
    """T-CT6. Keys look for the third channel, so the inputs that have it receive the attention."""
    mixer = layer(memory=0, compressed_memory=2, rate=3, function="most_used", auxiliary="none")
    with torch.no_grad():
        mixer.reader.query.weight.zero_()[:, 3] = 1.0
        mixer.reader.key.weight.zero_()[:, 2] = 1.0
    x = torch.randn(1, 6, DIM, dtype=torch.float64) * 0.1
    x[..., 2], x[..., 3] = torch.tensor([0.0, 4.0, 0.0, 1.0, 5.0, 0.0], dtype=torch.float64), 1.0
    state = run_in_segments(mixer, x, []).state
    assert torch.equal(state["hidden"], x[:, [1, 4]])


def test_attention_is_counted_once_though_the_backward_pass_computes_it_again() -> None:
    mixer, length = layer(memory=700, compressed_memory=2, rate=2, function="most_used", auxiliary="none"), 600
    result = run_in_segments(mixer, noise(2, length, DIM).requires_grad_(), [])
    result.y.sum().backward()
    usage = result.state["used"]
    torch.testing.assert_close(usage[..., 0].sum(dim=1), torch.full((2,), float(length), dtype=torch.float64))
    assert torch.equal(usage[0, :, 1], torch.arange(length, 0, -1, dtype=torch.float64))


def test_padding_uses_nothing_and_is_not_used() -> None:
    mixer, x = layer(memory=8, compressed_memory=2, rate=2, function="most_used", auxiliary="none"), noise(1, 6, DIM)
    padded = mixer(x, context(x, torch.arange(6)[None] < 4)).state["used"]
    torch.testing.assert_close(padded[:, :4], mixer(x[:, :4], context(x[:, :4])).state["used"])
    assert not padded[:, 4:].any()


@every_loss
def test_padding_has_no_part_in_a_loss(fields: dict[str, Any]) -> None:
    """Neither as a query, nor among the vectors that leave memory, of which the second lane has no real one."""
    mixer, x = layer(memory=2, compressed_memory=3, rate=2, **fields), noise(2, 6, DIM)
    padding_mask = torch.tensor([[True, False, True, True, False, True], [False, False, False, False, True, True]])
    changed = torch.where(padding_mask[..., None], x, noise(2, 6, DIM))
    loss, changed_loss = (mixer(z, context(z, padding_mask)).aux["compression"] for z in (x, changed))
    assert loss > 0
    torch.testing.assert_close(loss, changed_loss, atol=1e-12, rtol=1e-12)


@every_function
def test_padding_enters_no_slot(fields: dict[str, Any]) -> None:
    mixer, x, later = layer(memory=0, compressed_memory=3, rate=2, **fields), noise(1, 6, DIM), noise(1, 3, DIM)
    padding_mask = torch.tensor([[True, False, False, False, True, True]])
    changed = torch.where(padding_mask[..., None], x, noise(1, 6, DIM))
    later_outputs = [mixer(later, context(later), mixer(z, context(z, padding_mask)).state) for z in (x, changed)]
    torch.testing.assert_close(later_outputs[0].y, later_outputs[1].y, atol=1e-12, rtol=1e-12)


def test_a_slot_is_seen_where_any_of_its_inputs_was_and_is_made_of_those() -> None:
    for function, expected in (("mean", [1.0, 0.0, 5.5]), ("max", [1.0, 0.0, 6.0])):
        mixer = layer(memory=0, compressed_memory=3, rate=2, function=function, auxiliary="none")
        x = torch.arange(1, 7, dtype=torch.float64)[None, :, None].expand(1, -1, DIM)
        state = mixer(x, context(x, torch.tensor([[True, False, False, False, True, True]]))).state
        assert state["key_mask"].tolist() == [[True, False, True]]
        assert state["hidden"][0, :, 0].tolist() == expected


def test_reconstruction_is_by_content_whatever_the_encoding() -> None:
    """T-CT3: positions have no part in it."""
    x, losses = noise(2, 8, DIM), []
    for encoding in (None, XLConfig(), RotaryConfig()):
        mixer = layer(memory=2, compressed_memory=2, rate=2)
        state = mixer.state_dict()
        encoded_mixer = layer(memory=2, compressed_memory=2, rate=2, encoding=encoding)
        encoded_mixer.load_state_dict(state, strict=False)
        losses.append(torch.stack(run_in_segments(encoded_mixer, x, [4]).losses))
    assert torch.equal(losses[0], losses[1]) and torch.equal(losses[0], losses[2])


@every_loss
def test_evaluation_has_no_auxiliary_loss(fields: dict[str, Any]) -> None:
    mixer = layer(memory=0, compressed_memory=2, rate=2, **fields)
    assert len(run_in_segments(mixer, noise(1, 4, DIM), []).losses) == 1
    assert run_in_segments(mixer.eval(), noise(1, 4, DIM), []).losses == []
    with torch.no_grad():
        assert run_in_segments(mixer.train(), noise(1, 4, DIM), []).losses == []


def test_each_layer_may_have_an_auxiliary_loss_of_its_own() -> None:
    config = CompressiveConfig(auxiliary=("none", "auto_encoding"))
    layers = [config.build(Shape(DIM, HEADS, 16, index, 2)) for index in range(2)]
    assert [mixer.reconstruction is None for mixer in layers] == [True, False]
    with pytest.raises(ConfigError, match=r"mixer\.auxiliary: 2 values do not divide 3 layers"):
        config.build(Shape(DIM, HEADS, 16, 0, 3))


@pytest.mark.parametrize("function", ["max", "mean", "most_used"])
def test_a_loss_of_a_function_that_learns_nothing_is_refused(function: str) -> None:
    with pytest.raises(ConfigError, match=f"function: {function} learns nothing .* set auxiliary: none"):
        CompressiveConfig.from_dict({"function": function})


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["auto_encoding", "attention_reconstruction"])
def test_the_losses_can_be_learned(loss: str) -> None:
    """Compression of a sequence that repeats each vector ``rate`` times loses nothing."""
    mixer = layer(memory=0, compressed_memory=8, rate=2, auxiliary=loss)
    optimizer = torch.optim.Adam([p for p in mixer.parameters() if p.requires_grad], 0.02)
    losses = []
    for _ in range(150):
        x = noise(16, 4, DIM).repeat_interleave(2, dim=1)
        (compression_loss,) = run_in_segments(mixer, x, []).losses
        optimizer.zero_grad()
        compression_loss.backward()
        optimizer.step()
        losses.append(compression_loss.item())
    assert losses[-1] < 0.05 * losses[0]
