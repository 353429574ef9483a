"""Recurrent baselines: the LSTM of language models (Zaremba et al. 2014, arXiv:1409.2329, section 3.1), and a
bidirectional one (Huang et al. 2015, arXiv:1508.01991, section 2.2)."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_transformers.config import Positive, Width
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, OutputProjection, Promises, Shape


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
                "cross": "it has no queries: what it reads of a sequence is its own state",
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
                "cross": "it has no queries: what it reads of a sequence is its own state",
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
    """Returns outputs, zero at padding, and the state after the last real token; rows of padding alone keep theirs."""
    if padding_mask is None:
        y, last = lstm(x, initial)
        return y, last
    order = (~padding_mask).int().argsort(dim=1, stable=True)  # real tokens first, in order
    lengths = padding_mask.sum(dim=1)
    packed = pack_padded_sequence(
        x.gather(1, order[..., None].expand_as(x)), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )
    packed_outputs, last = lstm(packed, initial)
    y, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=x.size(1))
    inverse_order = order.argsort(dim=1)
    y = y.gather(1, inverse_order[..., None].expand(-1, -1, y.size(-1))) * padding_mask[..., None]
    has_tokens = (lengths > 0)[None, :, None]
    return y, tuple(torch.where(has_tokens, new, old.to(new.dtype)) for new, old in zip(last, initial, strict=True))


def lstm_flops(queries: int, dim: int, width: int) -> int:
    """FLOPs of the matrices of one direction: four gates, each of the input and of the hidden state."""
    return 2 * queries * 4 * width * (dim + width)
