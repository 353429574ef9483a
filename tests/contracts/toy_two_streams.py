"""A family from outside of the library with a second query stream (XLNet, arXiv:1906.08237).

It reads whole rows. In training it also predicts each symbol from those before it in a random order of its row, by a
stream of queries that know their position and not their symbol, and learns from that through an auxiliary loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import Probe
from lit_transformers.mixer import Context
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork
from lit_transformers.models.model import ModelOutput, positions_of
from lit_transformers.stacks.block import TwoStreamOutput


class PermutedConfig(RowModelConfig, kind="permuted"):
    gates: ClassVar[str] = f"{__name__}:GATES"

    @property
    def first_sees_all(self) -> bool:
        return True

    def build(self, data: DataDescription) -> Permuted:
        return Permuted(self, data)


class Permuted(RowNetwork):
    def __init__(self, config: PermutedConfig, data: DataDescription) -> None:
        super().__init__()
        self.tokens = config.tokens.build(data.vocabulary.size, config.dim)
        self.stack = config.build_stack("permuted", data.length)
        self.query = nn.Parameter(torch.randn(config.dim))
        self.norm = config.final_norm()
        config.initialise(self, self.tokens)

    def read_in_order(
        self, symbols: Int[Tensor, "b t"], places: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"] | None = None
    ) -> TwoStreamOutput:
        """Reads the symbols in the order of their places in both streams."""
        x = self.tokens.embed(symbols)
        ctx = Context(positions_of(symbols, None)[0], causal=False, padding_mask=padding_mask)
        return self.stack.forward_with_queries(x, self.query.expand_as(x), ctx, places)

    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        ctx = Context(positions_of(symbols, None)[0], causal=False, padding_mask=padding_mask)
        output = self.stack(self.tokens.embed(symbols), ctx)
        aux = dict(output.aux)
        if self.training:
            places = torch.rand(symbols.shape, device=symbols.device).argsort(dim=1)
            predicted = self.norm(self.read_in_order(symbols, places, padding_mask).queries)
            nats = self.tokens.nll(predicted, symbols)
            real = torch.ones_like(nats) if padding_mask is None else padding_mask
            aux["permutation"] = (nats * real).sum() / real.sum().clamp(min=1)
        return ModelOutput(self.norm(output.y), None, aux)

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        return 3 * self.stack.flops(length, 0, causal=False) + self.tokens.flops(length)

    def softmax_flops(self, length: int) -> int:
        return 0


def queries_see_no_token_of_theirs(probe: Probe) -> str:
    """Checks that no prediction changes with the symbols that are not before it in the order."""
    network, symbols = probe.config.build(probe.data).double().eval(), probe.symbols()
    assert isinstance(network, Permuted)
    places = torch.rand(symbols.shape).argsort(dim=1)
    changed = torch.where(places < probe.length // 2, symbols, (symbols + 7) % probe.vocabulary)
    before, after = (network.read_in_order(row, places).queries for row in (symbols, changed))
    unaffected = places <= probe.length // 2
    if (before - after)[unaffected].abs().max() > gates.TOLERANCE:
        raise gates.Broken("a query sees its own symbol, or one that is after it in the order")
    return "queries see only the symbols before them"


GATES: dict[str, Callable[[Probe], str]] = {
    **gates.BIDIRECTIONAL,
    "queries see no token of theirs": queries_see_no_token_of_theirs,
}
