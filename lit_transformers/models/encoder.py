"""A bidirectional encoder (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import DataDescription
from lit_transformers.config import NonNegative
from lit_transformers.mixer import Context
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork
from lit_transformers.models.model import ModelOutput


class EncoderConfig(RowModelConfig, kind="encoder"):
    """Reads a whole sequence at once.

    extra_tokens: learned vectors that are put before the sequence as marked tokens and removed from the output, as
    BigBird's ETC adds them for its global attention (arXiv:2007.14062, section 2).
    """

    gates: ClassVar[str] = "lit_transformers.checks.gates:BIDIRECTIONAL"
    first_sees_all: ClassVar[bool] = True

    extra_tokens: NonNegative = 0

    def build(self, data: DataDescription) -> Encoder:
        return Encoder(self, data)


class Encoder(RowNetwork):
    """A network in which every position sees every other, so that a position is represented from both sides."""

    def __init__(self, config: EncoderConfig, data: DataDescription) -> None:
        super().__init__()
        self.tokens = config.tokens.build(data.vocabulary.size, config.dim)
        self.stack = config.build_stack("bidirectional", data.length + config.extra_tokens)
        self.extra = nn.Embedding(config.extra_tokens, config.dim) if config.extra_tokens else None
        self.norm = config.final_norm()
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None = None,
        marked: Bool[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        """Maps symbols (b, t) to hidden (b, t, d). ``padding_mask`` is True at real symbols and False at padding;
        ``marked`` is True at symbols that the data single out."""
        x = self.tokens.embed(symbols)
        if self.extra is not None:
            rows, extra = symbols.size(0), self.extra.weight.size(0)
            x = torch.cat([self.extra.weight.to(x.dtype).expand(rows, -1, -1), x], dim=1)
            padding_mask = None if padding_mask is None else F.pad(padding_mask, (extra, 0), value=True)
            marked = torch.zeros_like(symbols, dtype=torch.bool) if marked is None else marked
            marked = F.pad(marked, (extra, 0), value=True)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        output = self.stack(x, Context(positions, causal=False, padding_mask=padding_mask, marked=marked))
        return ModelOutput(self.norm(output.y)[:, x.size(1) - symbols.size(1) :], None, dict(output.aux))

    def read_row(
        self, symbols: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"] | None, marked: Bool[Tensor, "b t"]
    ) -> ModelOutput:
        output: ModelOutput = self(symbols, padding_mask, marked)
        return output

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """As in ``Network.flops``, without an output layer, which belongs to the objective."""
        extra = 0 if self.extra is None else self.extra.weight.size(0)
        return self.stack.flops(length + extra, 0, causal=False)

    def softmax_flops(self, length: int) -> int:
        return 0
