"""Recurrent baselines: the LSTM of language models (Zaremba et al. 2014, arXiv:1409.2329, section 3.1), and a
bidirectional one (Huang et al. 2015, arXiv:1508.01991, section 2.2)."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_transformers.config import Positive, Width
from lit_transformers.host import reads_at_once
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, OutputProjection, Promises, Shape
from lit_transformers.precision import full_precision, has_bfloat16_recurrence, no_autocast

SHUT = 1e4
"""A number that is added to a gate to shut it: its sigmoid is then zero, and one less is one, in half precision too."""
ALIGNED = 8
"""Channels by which inputs are widened, of which one is used: products of matrices are slow where widths are odd."""


@final
class LSTMConfig(MixerConfig, kind="lstm"):
    """width: channels of its hidden state (None for dim)."""

    width: Annotated[Positive | None, Width] = None

    def promises(self) -> Promises:
        return Promises(
            ("causal",),
            streams=True,
            refusals={
                "bidirectional": "it reads from left to right; the kind bilstm reads both ways",
                "cross": "it has no queries: it reads a sequence through its own state",
            },
        )

    def build(self, shape: Shape) -> LSTM:
        return LSTM(self, shape)


@final
class LSTM(Mixer):
    """One layer, h_t = o * tanh(c_t) and c_t = f * c_(t-1) + i * g (arXiv:1409.2329, section 3.1), then a linear map.

    State is the hidden and the cell vector. Padding is skipped wherever it is, and changes neither.
    """

    def __init__(self, config: LSTMConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.width = shape.dim, config.width or shape.dim
        self.recurrence = nn.LSTM(self.dim, self.width, batch_first=True)
        self.merge = OutputProjection(self.width, shape)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        zeros = x.new_zeros(x.size(0), self.width)
        hidden, cell = (zeros, zeros) if state is None else (state["hidden"], state["cell"])
        y, last = run(self.recurrence, x, ctx.padding_mask, (hidden[None].to(x.dtype), cell[None].to(x.dtype)))
        hidden, cell = (vector[0] for vector in last)
        return MixerOutput(self.merge(y), {"hidden": hidden, "cell": cell})

    def decoding_state(self, length: int) -> int:
        return 2 * self.width

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return lstm_flops(queries, self.dim, self.width) + self.merge.flops(queries)


@final
class BiLSTMConfig(MixerConfig, kind="bilstm"):
    """width: channels of the hidden state of each direction (None for dim)."""

    width: Annotated[Positive | None, Width] = None

    def promises(self) -> Promises:
        return Promises(
            ("bidirectional",),
            refusals={
                "causal": "it reads from right to left too; the kind lstm does not",
                "cross": "it has no queries: it reads a sequence through its own state",
            },
        )

    def build(self, shape: Shape) -> BiLSTM:
        return BiLSTM(self, shape)


@final
class BiLSTM(Mixer):
    """An LSTM in each direction, concatenated, then a linear map to dim (arXiv:1508.01991, section 2.2)."""

    def __init__(self, config: BiLSTMConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.width = shape.dim, config.width or shape.dim
        self.recurrence = nn.LSTM(self.dim, self.width, batch_first=True, bidirectional=True)
        self.merge = OutputProjection(2 * self.width, shape)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        zeros = x.new_zeros(2, x.size(0), self.width)
        y, _ = run(self.recurrence, x, ctx.padding_mask, (zeros, zeros))
        return MixerOutput(self.merge(y))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 2 * lstm_flops(queries, self.dim, self.width) + self.merge.flops(queries)


def run(
    lstm: nn.LSTM,
    x: Float[Tensor, "b t d"],
    padding_mask: Bool[Tensor, "b t"] | None,
    initial: tuple[Float[Tensor, "n b w"], Float[Tensor, "n b w"]],
) -> tuple[Float[Tensor, "b t w"], tuple[Tensor, ...]]:
    """Returns outputs, zero at padding, and the state after the last real token; rows of padding alone keep theirs.
    Computes in single precision on a processor that has no recurrence in bfloat16."""
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not has_bfloat16_recurrence():
        with no_autocast(x.device):
            hidden, cell = map(full_precision, initial)
            return run(lstm, full_precision(x), padding_mask, (hidden, cell))
    if padding_mask is None:
        y, last = lstm(x, initial)
        return y, last
    order = (~padding_mask).int().argsort(dim=1, stable=True)  # real tokens first, in order
    lengths = padding_mask.sum(dim=1)
    read = packed if reads_at_once(lengths) else held
    y, last = read(lstm, x.gather(1, order[..., None].expand_as(x)), lengths, initial)
    inverse_order = order.argsort(dim=1)
    y = y.gather(1, inverse_order[..., None].expand(-1, -1, y.size(-1))) * padding_mask[..., None]
    has_tokens = (lengths > 0)[None, :, None]
    return y, tuple(torch.where(has_tokens, new, old.to(new.dtype)) for new, old in zip(last, initial, strict=True))


State = tuple[Float[Tensor, "n b w"], Float[Tensor, "n b w"]]
"""The hidden and the cell vectors of each direction."""


def packed(
    lstm: nn.LSTM, x: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"], initial: State
) -> tuple[Float[Tensor, "b t w"], State]:
    """Returns outputs and state of rows whose first tokens are real, as many as ``lengths`` says. Padding, which takes
    no time, has zeros. The host reads ``lengths``."""
    sequence = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
    outputs, last = lstm(sequence, initial)
    y, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.size(1))
    return y, last


def held(
    lstm: nn.LSTM, x: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"], initial: State
) -> tuple[Float[Tensor, "b t w"], State]:
    """Returns the outputs of ``packed``, with any numbers at padding, without reading ``lengths`` on the host.

    A channel that is 1 at padding closes the input gate and opens the forget gate, so that c_t = 1 c_(t-1) + 0 g. So a
    backward direction reaches the last real token with the cell that it began with; that is zero, as is h = o tanh(0).
    The hidden vector of a forward direction is its output at the last real token.
    """
    is_padding = (torch.arange(x.size(1), device=x.device) >= lengths[:, None])[..., None]
    x = torch.cat([x.masked_fill(is_padding, 0.0), F.pad(is_padding.to(x.dtype), (0, ALIGNED - 1))], dim=-1)
    weights = []
    for of_inputs, *others in lstm.all_weights:
        gates = of_inputs.new_zeros(4, lstm.hidden_size, ALIGNED)  # of input, forgetting, cell, output
        gates[0, :, 0], gates[1, :, 0] = -SHUT, SHUT
        weights += [torch.cat([of_inputs, gates.flatten(0, 1)], dim=1), *others]
    y, hidden, cell = torch.lstm(x, initial, weights, True, 1, 0.0, lstm.training, lstm.bidirectional, True)
    last = (lengths.clamp(min=1) - 1)[:, None, None].expand(-1, 1, lstm.hidden_size)
    forward_hidden = y[..., : lstm.hidden_size].gather(1, last).transpose(0, 1)
    return y, (torch.cat([forward_hidden, hidden[1:]]), cell)


def lstm_flops(queries: int, dim: int, width: int) -> int:
    """FLOPs of the matrices of one direction: four gates, each of the input and of the hidden state."""
    return 2 * queries * 4 * width * (dim + width)
