"""A causal language model: the network of Transformer-XL, of Al-Rfou et al. and of their ablations."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.mixer import Context
from lit_transformers.mixers.memory import first_tokens, holds_each_token
from lit_transformers.models.capabilities import (
    CausalModelConfig,
    CausalNetwork,
    LayerOutputs,
    RowModelConfig,
    RowNetwork,
    every_layer,
)
from lit_transformers.models.model import ModelOutput, positions_of
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks.carried import Carried, leaves_state, read_until_full
from lit_transformers.stacks.unpadded import pass_without_padding


class LanguageModelConfig(CausalModelConfig, RowModelConfig, kind="language_model"):
    """Predicts each symbol from those before it."""

    gates: ClassVar[str] = "lit_transformers.gates.gates:CAUSAL"

    @property
    def first_sees_all(self) -> bool:
        return False

    def build(self, data: DataDescription) -> LanguageModel:
        return LanguageModel(self, data)


class LanguageModel(CausalNetwork, RowNetwork):
    """Reads segments in order. ``state`` is {"length": (b,) tokens read, "layers": the stack's state}."""

    def __init__(self, config: LanguageModelConfig, data: DataDescription) -> None:
        super().__init__()
        self.dim, self.streams = config.dim, config.mixer.promises().streams
        self.remembered, self.unpadded = config.mixer.remembered, config.unpadded
        self.tokens = config.tokens.build(data.vocabulary.size, config.dim)
        self.stack = config.build_stack("causal", data.length)
        self.norm = config.final_norm()
        self.dropout = nn.Dropout(config.dropout)
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        state: Any = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
        unbroken: int = 0,
        alone: bool = False,
    ) -> ModelOutput:
        """As in ``CausalNetwork.forward``. alone: no segment follows these rows, so that no state is needed."""
        positions, start = positions_of(symbols, None if state is None else state["length"])
        ctx = Context(positions, causal=True, padding_mask=padding_mask, padding_last=True)
        ctx = with_fields(ctx, unbroken=unbroken, start=0 if state is None else None)
        x = self.tokens.embed(symbols)
        if alone and self.unpadded:
            output = pass_without_padding(self.stack, x, ctx, keep_layers)
        else:
            output = self.stack(x, ctx, None if state is None else state["layers"], keep_layers)
        length = start + (symbols.size(1) if padding_mask is None else padding_mask.sum(dim=1))
        hidden = self.dropout(self.norm(output.y))
        states = {"length": length, "layers": output.state}
        return ModelOutput(hidden, states, dict(output.aux), output.hidden, embedded=output.entered)

    def first_symbols(self, state: Any, read: int, kept: int) -> Any:
        if not holds_each_token(state["layers"], read):
            return None
        return {"length": state["length"] - (read - kept), "layers": first_tokens(state["layers"], kept)}

    def read_layer(self, hidden: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        y: Tensor = self.dropout(self.norm(hidden))
        return y

    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        output: ModelOutput = self(symbols, None, padding_mask, alone=True)
        return output

    def read_layers(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> LayerOutputs:
        output: ModelOutput = self(symbols, None, padding_mask, keep_layers=True, alone=True)
        return every_layer(output)

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """As in ``Network.flops``, the softmax included."""
        return self.stack.flops(length, remembered) + self.tokens.flops(length)

    def carried(self, length: int) -> Carried:
        return read_until_full(self.stack, self.dim, length) if self.streams else Carried(0, 0)

    def decoding_state(self, length: int) -> int | None:
        return self.stack.decoding_state(length)

    def carries(self) -> bool:
        return leaves_state(self.stack, self.dim)
