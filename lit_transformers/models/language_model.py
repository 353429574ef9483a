"""A causal language model: the network of Transformer-XL, of Al-Rfou et al. and of their ablations."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context
from lit_transformers.models.model import ModelConfig, ModelOutput, positions_of


class LanguageModelConfig(ModelConfig, kind="language_model"):
    """Predicts each symbol from those before it."""

    def build(self, vocabulary: int, max_length: int) -> LanguageModel:
        return LanguageModel(self, vocabulary, max_length)


def language_model(config: ModelConfig, data: DataDescription, task: str) -> LanguageModel:
    """Builds a language model for an objective. Raises ConfigError for a model of another kind."""
    if not isinstance(config, LanguageModelConfig):
        raise ConfigError(f"{task} trains a language_model, not a {config.kind}", "model")
    return config.build(data.vocabulary.size, data.length)


class LanguageModel(nn.Module):
    """Reads segments in order. ``state`` is {"length": (b,) tokens read, "layers": the stack's state}."""

    def __init__(self, config: LanguageModelConfig, vocabulary: int, max_length: int) -> None:
        super().__init__()
        self.tokens = config.tokens.build(vocabulary, config.dim)
        self.stack = config.build_stack("causal", max_length)
        self.norm = config.final_norm()
        self.dropout = nn.Dropout(config.dropout)
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        state: Any = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
    ) -> ModelOutput:
        """Maps symbols (b, t) to hidden (b, t, d). ``padding_mask`` is True at real symbols and False at padding, which
        is at the end of a row."""
        positions, start = positions_of(symbols, None if state is None else state["length"])
        ctx = Context(positions, causal=True, padding_mask=padding_mask)
        output = self.stack(self.tokens.embed(symbols), ctx, None if state is None else state["layers"], keep_layers)
        length = start + (symbols.size(1) if padding_mask is None else padding_mask.sum(dim=1))
        hidden = self.dropout(self.norm(output.y))
        return ModelOutput(hidden, {"length": length, "layers": output.state}, dict(output.aux), output.hidden)

    def read_layer(self, hidden: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Prepares an intermediate layer's output for the softmax that all layers share."""
        y: Tensor = self.dropout(self.norm(hidden))
        return y

    def flops(self, queries: int, remembered: int) -> int:
        """Forward FLOPs for one sequence of ``queries`` symbols after ``remembered`` ones."""
        return self.stack.flops(queries, remembered) + self.tokens.flops(queries)
