"""A bidirectional encoder (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor, nn

from lit_transformers.mixer import Context
from lit_transformers.models.model import ModelConfig, Read, positions_of


class EncoderConfig(ModelConfig, kind="encoder"):
    """Reads a whole sequence at once."""

    def build(self, vocabulary: int, max_length: int) -> Encoder:
        return Encoder(self, vocabulary, max_length)


class Encoder(nn.Module):
    """Every position sees every other; what stands at a masked one is predicted from both sides."""

    def __init__(self, config: EncoderConfig, vocabulary: int, max_length: int) -> None:
        super().__init__()
        self.tokens = config.tokens.build(vocabulary, config.dim)
        self.stack = config.build_stack("bidirectional", max_length)
        self.norm = config.final_norm()
        config.initialise(self, self.tokens)

    def forward(self, symbols: Int[Tensor, "b t"], keep: Bool[Tensor, "b t"] | None = None) -> Read:
        """symbols (b, t) to hidden (b, t, d); ``keep`` is True at real symbols."""
        positions, _ = positions_of(symbols, None)
        stacked = self.stack(self.tokens.embed(symbols), Context(positions, causal=False, keep=keep))
        return Read(self.norm(stacked.y), None, dict(stacked.aux))
