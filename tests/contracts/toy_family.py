"""A family of models from outside of the library: one file, and one line where it is registered.

A tutor predicts symbols. A draft reads the same embeddings and the output of the lower half of the tutor's stack, which
is computed once, and learns to give the tutor's output. Nothing that the draft learns changes the tutor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Positive
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import Probe
from lit_transformers.mixer import Context
from lit_transformers.models.capabilities import CausalModelConfig, CausalNetwork
from lit_transformers.models.model import ModelOutput, positions_of
from lit_transformers.stacks.carried import Carried, leaves_state, read_until_full


class DraftedConfig(CausalModelConfig, kind="drafted"):
    """cut: layers of the tutor whose output the draft reads; draft_depth: layers of the draft."""

    gates: ClassVar[str] = f"{__name__}:GATES"

    cut: Positive = 1
    draft_depth: Positive = 1

    def build(self, data: DataDescription) -> Drafted:
        return Drafted(self, data)

    def depths(self) -> dict[str, int]:
        return {"depth": self.depth, "draft_depth": self.draft_depth}


def cut_off(x: Tensor) -> Tensor:
    """Returns vectors that the draft may read but not change."""
    return x.detach()


class Drafted(CausalNetwork):
    """``state`` is {"length": (b,) tokens read, "lower", "upper", "draft": the stacks' states}."""

    def __init__(self, config: DraftedConfig, data: DataDescription) -> None:
        super().__init__()
        self.dim, self.remembered = config.dim, config.mixer.remembered
        self.tokens = config.tokens.build(data.vocabulary.size, config.dim)
        self.lower, self.upper = config.build_stack("causal", data.length).split(config.cut)
        self.draft = config.override({"depth": config.draft_depth}).build_stack("causal", data.length)
        self.norm, self.draft_norm = config.final_norm(), config.final_norm()
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        state: Any = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
        unbroken: int = 0,
    ) -> ModelOutput:
        state = state or dict.fromkeys(("length", "lower", "upper", "draft"))
        positions, start = positions_of(symbols, state["length"])
        ctx = Context(positions, True, padding_mask, offset=self.lower.entry.offsets(positions))
        ctx = ctx._replace(padding_last=True, unbroken=unbroken)
        embedded = self.tokens.embed(symbols)
        lower = self.lower(embedded, ctx, state["lower"], keep_layers)
        upper = self.upper(lower.y, ctx, state["upper"], keep_layers)
        draft = self.draft(cut_off(embedded + lower.y), ctx, state["draft"])
        hidden = self.norm(upper.y)
        real = torch.ones_like(symbols, dtype=torch.bool) if padding_mask is None else padding_mask
        distance = (self.draft_norm(draft.y) - cut_off(hidden)).square().mean(dim=-1)
        aux = {"draft": (distance * real).sum() / real.sum().clamp(min=1), **lower.aux, **upper.aux}
        states = {"lower": lower.state, "upper": upper.state, "draft": draft.state, "length": start + real.sum(dim=1)}
        return ModelOutput(hidden, states, aux, (*lower.hidden, lower.y, *upper.hidden) if keep_layers else ())

    def read_layer(self, hidden: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.norm(hidden)

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        return sum(stack.flops(length, remembered) for stack in self.stacks()) + self.tokens.flops(length)

    def carried(self, length: int) -> Carried:
        states = [read_until_full(stack, self.dim, length) for stack in self.stacks()]
        return Carried(max(state.tokens for state in states), sum(state.state_bytes for state in states))

    def carries(self) -> bool:
        return any(leaves_state(stack, self.dim) for stack in self.stacks())

    def stacks(self) -> list[Any]:
        return [self.lower, self.upper, self.draft]


def draft_teaches_nothing(probe: Probe) -> str:
    """Checks that the draft's loss has no gradient with respect to the tutor."""
    network = gates.causal(probe)
    network(probe.symbols()).aux["draft"].backward()
    assert isinstance(network, Drafted)
    tutor: list[nn.Module] = [network.tokens, network.lower, network.upper, network.norm]
    if any(p.grad is not None and p.grad.any() for part in tutor for p in part.parameters()):
        raise gates.Broken("the draft's loss changes the tutor")
    return "no gradient from the draft"


GATES: dict[str, Callable[[Probe], str]] = {**gates.CAUSAL, "the draft teaches nothing": draft_teaches_nothing}
