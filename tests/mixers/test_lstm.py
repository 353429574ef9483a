"""The LSTM baselines equal the gates written out, step over padding, and refuse the direction that they cannot read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import BiLSTMConfig, LSTMConfig, lstm
from lit_transformers.mixers.lstm import LSTM, BiLSTM

DIM, WIDTH = 6, 5


def layer(config: LSTMConfig) -> LSTM:
    torch.manual_seed(0)
    return config.build(Shape(DIM, 2, 16)).double()


def context(x: Tensor, causal: bool = True, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(x.size(1)).expand(x.size(0), -1), causal, padding_mask)


def steps(lstm: nn.LSTM, x: Tensor, padding_mask: list[bool], suffix: str) -> list[Tensor]:
    """One sequence, gate by gate (arXiv:1409.2329, section 3.1); padding is stepped over. PyTorch has two biases."""
    input_weight, hidden_weight, input_bias, hidden_bias = (
        getattr(lstm, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    hidden = cell = torch.zeros(input_weight.size(0) // 4, dtype=x.dtype)
    states = []
    for token, is_real in zip(x, padding_mask, strict=True):
        if is_real:
            input_gate, forget_gate, candidate, output_gate = (
                input_weight @ token + hidden_weight @ hidden + input_bias + hidden_bias
            ).chunk(4)
            cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
            hidden = output_gate.sigmoid() * cell.tanh()
        states.append(hidden)
    return states


@pytest.mark.parametrize(
    "kept", [[True] * 7, [True, False, True, True, False, True, False], [False, False] + [True] * 5]
)
def test_an_lstm_equals_its_gates_written_out_and_steps_over_padding(kept: list[bool]) -> None:
    mixer, x = layer(LSTMConfig(width=WIDTH)), torch.randn(1, 7, DIM, dtype=torch.float64)
    mixed = mixer(x, context(x, padding_mask=torch.tensor([kept])))
    expected = steps(mixer.recurrence, x[0], kept, "")
    padding_mask = torch.tensor(kept)
    torch.testing.assert_close(
        mixed.y[0, padding_mask], mixer.merge(torch.stack(expected))[padding_mask], atol=1e-12, rtol=1e-12
    )
    torch.testing.assert_close(mixed.state["hidden"][0], expected[-1], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kept", [[True] * 6, [False, True, True, False, True, False]])
def test_a_bilstm_reads_the_real_tokens_from_either_end(kept: list[bool]) -> None:
    torch.manual_seed(0)
    mixer: BiLSTM = BiLSTMConfig(width=WIDTH).build(Shape(DIM, 2, 16)).double()
    x = torch.randn(1, 6, DIM, dtype=torch.float64)
    y = mixer(x, context(x, False, torch.tensor([kept]))).y[0]
    forward_states = steps(mixer.recurrence, x[0], kept, "")
    backward_states = steps(mixer.recurrence, x[0].flip(0), kept[::-1], "_reverse")[::-1]
    expected = mixer.merge(torch.cat([torch.stack(forward_states), torch.stack(backward_states)], dim=-1))
    torch.testing.assert_close(y[kept], expected[kept], atol=1e-12, rtol=1e-12)


def test_a_lane_of_padding_alone_keeps_its_state() -> None:
    mixer = layer(LSTMConfig())
    x = torch.randn(2, 4, DIM, dtype=torch.float64)
    state = mixer(x, context(x)).state
    after = mixer(x, context(x, padding_mask=torch.tensor([[False] * 4, [True] * 4])), state).state
    for name in ("hidden", "cell"):
        assert torch.equal(after[name][0], state[name][0])
        assert not torch.equal(after[name][1], state[name][1])


def test_zeros_are_the_empty_state() -> None:
    mixer = layer(LSTMConfig(width=WIDTH))
    x = torch.randn(2, 4, DIM, dtype=torch.float64)
    empty = {name: torch.zeros(2, WIDTH, dtype=torch.float64) for name in ("hidden", "cell")}
    assert torch.equal(mixer(x, context(x), empty).y, mixer(x, context(x)).y)


def test_the_state_of_an_lstm_does_not_grow_with_what_it_has_read() -> None:
    mixer = layer(LSTMConfig(width=WIDTH))
    for length in (1, 300):
        x = torch.randn(2, length, DIM, dtype=torch.float64)
        assert {part.shape for part in mixer(x, context(x)).state.values()} == {(2, WIDTH)}


def test_each_direction_is_refused_with_the_name_of_the_other() -> None:
    with pytest.raises(ConfigError, match=r"LSTM cannot be bidirectional: .* the kind bilstm reads both ways"):
        LSTMConfig().require("bidirectional")
    with pytest.raises(ConfigError, match=r"BiLSTM cannot be causal: .* the kind lstm does not"):
        BiLSTMConfig().require("causal")


def test_a_processor_without_bfloat16_recurrences_computes_them_in_single_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lstm, "has_bfloat16_recurrence", lambda: False)
    recurrence, x, zeros = nn.LSTM(DIM, WIDTH, batch_first=True), torch.randn(2, 4, DIM), torch.zeros(1, 2, WIDTH)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    for padding_mask in (None, mask):
        expected, _ = lstm.run(recurrence, x, padding_mask, (zeros, zeros))
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = lstm.run(recurrence, x, padding_mask, (zeros, zeros))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0, rtol=0)
