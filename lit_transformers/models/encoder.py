"""A bidirectional encoder (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import NonNegative
from lit_transformers.mixer import Context
from lit_transformers.models.model import ModelConfig, Read


class EncoderConfig(ModelConfig, kind="encoder"):
    """Reads a whole sequence at once.

    extra_tokens: learned vectors that stand before the sequence, marked, and are not given back: what BigBird's ETC
    adds for its global attention (arXiv:2007.14062, section 2).
    """

    extra_tokens: NonNegative = 0

    def build(self, vocabulary: int, max_length: int) -> Encoder:
        return Encoder(self, vocabulary, max_length)


class Encoder(nn.Module):
    """Every position sees every other; what stands at a masked one is predicted from both sides."""

    def __init__(self, config: EncoderConfig, vocabulary: int, max_length: int) -> None:
        super().__init__()
        self.tokens = config.tokens.build(vocabulary, config.dim)
        self.stack = config.build_stack("bidirectional", max_length + config.extra_tokens)
        self.extra = nn.Embedding(config.extra_tokens, config.dim) if config.extra_tokens else None
        self.norm = config.final_norm()
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        keep: Bool[Tensor, "b t"] | None = None,
        marked: Bool[Tensor, "b t"] | None = None,
    ) -> Read:
        """symbols (b, t) to hidden (b, t, d); ``keep`` is True at real symbols, ``marked`` at those singled out."""
        x = self.tokens.embed(symbols)
        if self.extra is not None:
            rows, added = symbols.size(0), self.extra.weight.size(0)
            x = torch.cat([self.extra.weight.to(x.dtype).expand(rows, -1, -1), x], dim=1)
            keep = None if keep is None else F.pad(keep, (added, 0), value=True)
            marked = torch.zeros_like(symbols, dtype=torch.bool) if marked is None else marked
            marked = F.pad(marked, (added, 0), value=True)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        stacked = self.stack(x, Context(positions, causal=False, keep=keep, marked=marked))
        return Read(self.norm(stacked.y)[:, x.size(1) - symbols.size(1) :], None, dict(stacked.aux))

    def flops(self, queries: int) -> int:
        """Forward FLOPs for one sequence, without a softmax: what is predicted is the objective's."""
        added = 0 if self.extra is None else self.extra.weight.size(0)
        return self.stack.flops(queries + added, 0, causal=False)
