"""The promises of every mixer, with every encoding: no future leak, padding ignored, segments equal one pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from contract_cases import DIM, KINDS, LONG, Case, context, dropping, each_mode, mixers, noise
from numerics import exactly, half, same, same_gradients, unmoved
from torch import Tensor

from lit_transformers.attention.patterns import BLOCK
from lit_transformers.checks.network_parts import modes_are_promised_or_refused
from lit_transformers.config import ConfigError
from lit_transformers.encodings import RotaryConfig
from lit_transformers.mixer import Context, Mixer, Mode, detach, empty_rows, state_tensors, take_rows
from lit_transformers.mixers import AttentionConfig, LSTMConfig

pytestmark = pytest.mark.any_device


def max_difference(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


@mixers("causal", encodings="with every mixer")
def test_other_inputs_after_a_position_change_nothing_up_to_it(case: Case) -> None:
    mixer = case.build()
    for length in case.lengths(7):
        before, ctx = noise(2, length, DIM), context(2, length)
        y_before = mixer(before, ctx).y
        for last in (255, 256) if length == LONG else (0, 3):
            y = mixer(torch.cat([before[:, : last + 1], noise(2, length - last - 1, DIM)], dim=1), ctx).y
            unmoved(y_before[:, : last + 1], y[:, : last + 1])
            assert max_difference(y_before[:, last + 1 :], y[:, last + 1 :]) > 1e-3, "a changed position sees itself"


@dropping()
def test_nothing_is_dropped_in_evaluation(case: Case, dropouts: dict[str, float]) -> None:
    mixer, x, ctx = case.build(**dropouts), noise(2, 12, DIM), context(2, 12, case.mode == "causal")
    trained, measured = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trained.append(mixer.train()(x, ctx).y)
        torch.manual_seed(seed)
        measured.append(mixer.eval()(x, ctx).y)
    assert torch.equal(measured[0], measured[1])
    assert max_difference(trained[0], trained[1]) > 1e-3, "dropout is on in training"


@mixers("causal")
def test_no_output_has_a_gradient_with_respect_to_a_later_input(case: Case) -> None:
    mixer = case.build()
    for length in case.lengths(6) if case.sees_all or case in KINDS.values() else (6,):
        last = 255 if length == LONG else 2
        x = noise(2, length, DIM).requires_grad_()
        (gradient,) = torch.autograd.grad(mixer(x, context(2, length)).y[:, last].square().sum(), x)
        assert not gradient[:, last + 1 :].any()
        assert gradient[:, last].any()
        if case.sees_all:
            forgets = isinstance(case.config, LSTMConfig) and x.dtype == torch.float32  # which ends at 1e-45
            assert gradient[:, max(0, last - 30) if forgets else 0 : last + 1].abs().amax(-1).min() > 0


@mixers("bidirectional", sees_all=True)
def test_without_causality_every_position_sees_every_other(case: Case) -> None:
    x = noise(1, 6, DIM).requires_grad_()
    y = case.build("bidirectional")(x, context(1, 6, causal=False)).y
    (gradient,) = torch.autograd.grad(y[:, 0].square().sum(), x)
    assert gradient.abs().amax(-1).min() > 0


@each_mode()
def test_what_stands_at_padded_positions_changes_nothing_at_real_ones(case: Case, mode: Mode) -> None:
    mixer = case.build(mode)
    for length in case.lengths(9) if mode == case.mode else (9,):
        padding_mask = torch.rand(3, length) < 0.6
        padding_mask[2] = False
        x = noise(3, length, DIM)
        changed = torch.where(padding_mask[..., None], x, noise(3, length, DIM))
        y, y_changed = (mixer(z, context(3, length, mode == "causal", padding_mask)).y for z in (x, changed))
        unmoved(y[padding_mask], y_changed[padding_mask])
        assert y.isfinite().all()


@each_mode()
def test_a_padded_end_gives_what_a_shorter_row_gives(case: Case, mode: Mode) -> None:
    mixer, x, causal = case.build(mode), noise(1, 9, DIM), mode == "causal"
    padding_mask = torch.arange(9)[None] < 5
    same(mixer(x, context(1, 9, causal, padding_mask)).y[:, :5], mixer(x[:, :5], context(1, 5, causal)).y)


@mixers()
def test_a_row_of_padding_has_finite_gradients(case: Case) -> None:
    mixer = case.build()
    x = noise(2, 5, DIM).requires_grad_()
    padding_mask = torch.tensor([[True] * 5, [False] * 5])
    mixer(x, context(2, 5, case.mode == "causal", padding_mask)).y.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())


def run_in_segments(
    mixer: Mixer,
    x: Tensor,
    cuts: list[int],
    state: Any = None,
    padding_mask: Tensor | None = None,
    start: int | Tensor = 0,
) -> tuple[Tensor, Any]:
    """x in segments that end at ``cuts``, each with the state that the last one left; ``start``: positions before."""
    outputs = []
    for first, stop in pairwise([0, *cuts, x.size(1)]):
        segment_mask = None if padding_mask is None else padding_mask[:, first:stop]
        mixed = mixer(x[:, first:stop], context(x.size(0), stop - first, True, segment_mask, start + first), state)
        outputs.append(mixed.y)
        state = mixed.state
    return torch.cat(outputs, dim=1), state


@mixers("causal", "streams", encodings="with every mixer")
def test_one_pass_equals_any_segmentation_while_memory_covers_the_history(case: Case) -> None:
    """Cut at one end, at the other, in the middle, unevenly, and everywhere; with gradients and without, where keys of
    earlier segments are kept as they are."""
    mixer = case.build(memory=12) if case.remembers else case.build()
    x = noise(2, 12, DIM)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            expected, _ = run_in_segments(mixer, x, [])
            for cuts in ([1], [11], [6], [2, 3, 7], [*range(1, 12)]):
                same(run_in_segments(mixer, x, cuts)[0], expected)


@mixers("causal", "streams")
def test_a_segment_of_several_blocks_after_a_memory_equals_one_pass(case: Case) -> None:
    mixer = case.build(memory=LONG) if case.remembers else case.build()
    for length in case.lengths(24):
        x = noise(1, length, DIM)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                same(run_in_segments(mixer, x, [20, 21])[0], run_in_segments(mixer, x, [])[0])


@mixers("causal", "streams", encodings="with every mixer")
def test_an_emptied_lane_equals_one_that_starts_anew(case: Case) -> None:
    mixer = case.build(memory=9) if case.remembers else case.build()
    first, second, third = noise(3, 5, DIM), noise(3, 4, DIM), noise(3, 3, DIM)
    start = torch.tensor([[5], [0], [5]])
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            _, state = run_in_segments(mixer, first, [2])
            emptied_state = empty_rows(state, torch.tensor([False, True, False]))
            y, _ = run_in_segments(mixer, torch.cat([second, third], dim=1), [4], emptied_state, start=start)
            same(y[1], run_in_segments(mixer, torch.cat([second, third], dim=1)[1:2], [])[0][0])
            continued = torch.cat([first, second, third], dim=1)
            same(y[[0, 2]], run_in_segments(mixer, continued, [])[0][[0, 2], 5:])


def test_every_part_of_an_emptied_lane_is_emptied_however_small_it_is() -> None:
    vector, flags, table = torch.ones(3), torch.ones(3, 1, dtype=torch.bool), torch.ones(3, 40, 50)
    state = {"one": vector, "layers": (flags, [table, None]), "count": torch.full((3,), 7)}
    emptied = list(state_tensors(empty_rows(state, torch.tensor([False, True, False]))))
    for before, after in zip(state_tensors(state), emptied, strict=True):
        assert not after[1].any() and torch.equal(after[[0, 2]], before[[0, 2]])
    assert len(emptied) == 4


@mixers("causal", "streams")
def test_a_state_of_training_is_read_on_without_gradients(case: Case) -> None:
    mixer = case.build(memory=12) if case.remembers else case.build()
    x = noise(2, 12, DIM)
    _, state = run_in_segments(mixer, x[:, :5], [])
    with torch.no_grad():
        same(run_in_segments(mixer, x[:, 5:], [2], state, start=5)[0], run_in_segments(mixer, x, [])[0][:, 5:])


@mixers("causal", "streams", encodings="none", remembering=True)
def test_a_state_made_without_gradients_is_refused_or_trains_all_weights(case: Case) -> None:
    mixer, x = case.build(memory=12), noise(2, 10, DIM)
    with torch.no_grad():
        _, detached_state = run_in_segments(mixer, x[:, :5], [])
    _, full_state = run_in_segments(mixer, x[:, :5], [])
    try:
        y, _ = run_in_segments(mixer, x[:, 5:], [], detached_state, start=5)
    except ValueError as error:
        assert "this state was made without gradients" in str(error)
        return
    expected, _ = run_in_segments(mixer, x[:, 5:], [], full_state, start=5)
    same_gradients(*(torch.autograd.grad(z.square().sum(), list(mixer.parameters())) for z in (y, expected)))


@mixers("causal", "streams")
def test_lanes_taken_in_another_order_go_on_in_that_order(case: Case) -> None:
    mixer = case.build(memory=9) if case.remembers else case.build()
    first, second, order = noise(3, 5, DIM), noise(2, 4, DIM), torch.tensor([2, 0])
    _, state = run_in_segments(mixer, first, [])
    y, _ = run_in_segments(mixer, second, [], take_rows(state, order), start=5)
    same(y, run_in_segments(mixer, torch.cat([first[order], second], dim=1), [])[0][:, 5:])


@mixers("causal", "streams")
def test_padding_of_an_earlier_segment_is_not_remembered(case: Case) -> None:
    mixer = case.build(memory=9) if case.remembers else case.build()
    padding_mask = torch.tensor([[True] * 3 + [False] * 2])
    x, second = noise(1, 5, DIM), noise(1, 4, DIM)
    changed = torch.where(padding_mask[..., None], x, noise(1, 5, DIM))
    y, y_changed = (
        run_in_segments(mixer, second, [], run_in_segments(mixer, z, [], padding_mask=padding_mask)[1], start=3)[0]
        for z in (x, changed)
    )
    unmoved(y, y_changed)


@mixers("causal", "streams")
def test_a_state_does_not_grow_beyond_its_memory_nor_leak_gradients(case: Case) -> None:
    mixer = case.build(memory=3) if case.remembers else case.build()
    x = noise(2, 12, DIM).requires_grad_()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            _, early_state = run_in_segments(mixer, x[:, :6], [3])
            _, late_state = run_in_segments(mixer, x, [3, 6, 7, 12 - 1])
        shapes = [[tensor.shape for tensor in state_tensors(state)] for state in (early_state, late_state)]
        assert shapes[0] == shapes[1]
        assert not any(tensor.requires_grad for tensor in state_tensors(detach(late_state)))
        assert all(tensor.size(0) == 2 for tensor in state_tensors(late_state))


@mixers("cross")
def test_a_cross_mixer_reads_the_whole_source_though_its_own_side_is_causal(case: Case) -> None:
    mixer, source = case.build("cross"), noise(1, 7, DIM).requires_grad_()
    x = noise(1, 4, DIM).requires_grad_()
    y = mixer(x, context(1, 4)._replace(source=source)).y
    source_gradient, x_gradient = torch.autograd.grad(y[:, 1].square().sum(), [source, x])
    assert source_gradient.any()
    if case.sees_all:
        assert source_gradient.abs().amax(-1).min() > 0
    assert not x_gradient[:, [0, 2, 3]].any(), "each position of x reads the source for itself"


@mixers("cross")
@pytest.mark.parametrize(("targets", "sources"), [(4, 7), (7, 4), (LONG, 5), (1, 1)])
def test_padding_of_the_source_is_not_read(case: Case, targets: int, sources: int) -> None:
    mixer, x, source = case.build("cross"), noise(2, targets, DIM), noise(2, sources, DIM)
    padding_mask = torch.arange(sources)[None] < torch.tensor([[sources], [max(1, sources // 2)]])
    changed = torch.where(padding_mask[..., None], source, noise(2, sources, DIM))

    def run_row(source: Tensor, padding_mask: Tensor | None, row: int) -> Tensor:
        ctx: Context = context(len(source), targets)._replace(source=source, source_padding_mask=padding_mask)
        y: Tensor = mixer(x if len(source) == 2 else x[row : row + 1], ctx).y
        return y[row if len(source) == 2 else 0]

    unmoved(run_row(source, padding_mask, 1), run_row(changed, padding_mask, 1))
    same(run_row(source, padding_mask, 1), run_row(source[1:, : int(padding_mask[1].sum())], None, 1))


@mixers("cross")
def test_a_source_of_padding_alone_stays_finite(case: Case) -> None:
    mixer, x, source = case.build("cross"), noise(2, 4, DIM).requires_grad_(), noise(2, 3, DIM)
    padding_mask = torch.tensor([[True] * 3, [False] * 3])
    y = mixer(x, context(2, 4)._replace(source=source, source_padding_mask=padding_mask)).y
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


@each_mode()
def test_any_length_works(case: Case, mode: Mode) -> None:
    mixer = case.build(mode)
    for length in (1, 2, 3, BLOCK + 1) if case.lengths() and mode == case.mode else (1, 2, 3):
        y = mixer(noise(2, length, DIM), context(2, length, mode == "causal")).y
        assert y.shape == (2, length, DIM) and y.isfinite().all()


@mixers()
def test_every_parameter_has_a_gradient(case: Case) -> None:
    """Of the output, or of a named loss."""
    causal = case.mode == "causal"
    mixer = case.build(memory=4) if case.remembers and causal else case.build()
    losses: list[Tensor] = []
    mixer.register_forward_hook(lambda _, inputs, mixed: losses.extend(mixed.aux.values()))
    if causal:
        y, _ = run_in_segments(mixer, noise(2, 10, DIM), [5] if case.config.promises().streams else [])
    else:
        y = mixer(noise(2, 10, DIM), context(2, 10, causal=False)).y
    (y.square().sum() + sum(losses)).backward()
    idle = [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@mixers()
def test_a_mixer_and_every_mixer_within_it_reports_losses_apart_from_what_it_observed(case: Case) -> None:
    mixer, outputs = case.build(), []
    for part in mixer.modules():
        if isinstance(part, Mixer):
            part.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    mixer(noise(2, 5, DIM), context(2, 5, case.mode == "causal"))
    for output in outputs:
        assert all(loss.dim() == 0 and loss.requires_grad for loss in output.aux.values())
        assert not any(value.requires_grad for value in output.observed.values())


@mixers()
def test_a_mode_is_promised_and_granted_or_refused_with_a_reason(case: Case) -> None:
    promises = case.config.promises()
    assert modes_are_promised_or_refused(case.config)
    for mode in promises.modes:
        case.config.require(mode)
    for mode, reason in promises.refusals.items():
        with pytest.raises(ConfigError, match=f"cannot be {mode}: {reason}"):
            case.config.require(mode)


def test_an_encoding_takes_cross_mixing_away_from_a_mixer_and_nothing_else() -> None:
    plain, encoded = AttentionConfig(), AttentionConfig(encoding=RotaryConfig())
    assert set(plain.promises().modes) - set(encoded.promises().modes) == {"cross"}
    with pytest.raises(ConfigError, match=r"encoding: .* distances between two sequences mean nothing"):
        encoded.require("cross")


@mixers("bidirectional", encodings="none", remembering=True)
@pytest.mark.parametrize("mode", ["bidirectional", "cross"])
def test_memory_is_refused_where_there_is_no_past(case: Case, mode: Mode) -> None:
    if mode in case.config.promises().modes:
        with pytest.raises(ConfigError, match=r"mixer\.memory: .* has none; set memory: 0"):
            case.build(mode, memory=4)


@mixers()
def test_half_precision_gives_what_single_precision_gives_to_its_own_tolerance(case: Case) -> None:
    with exactly(), torch.no_grad():
        mixer, x, ctx = case.build(), noise(2, 20, DIM) * 0.3, context(2, 20, case.mode == "causal")
        exact = mixer(x, ctx).y
    mixer = mixer.float()
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        with half(dtype == torch.bfloat16):
            y = mixer(x.float(), ctx).y
        assert max_difference(y.double(), exact) < tolerance * exact.abs().max()
