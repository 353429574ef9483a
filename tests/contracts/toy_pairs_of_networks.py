"""Two families from outside of the library that are made of two networks each.

A generator and a discriminator that share their embeddings (ELECTRA, arXiv:2003.10555), and a student that learns from
the predictions of a teacher, which is a network of another family and learns nothing (arXiv:1503.02531).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import DataDescription
from lit_transformers.config import Dropout, Fraction, Positive
from lit_transformers.mixer import Context
from lit_transformers.models.capabilities import CausalModelConfig, RowModelConfig, RowNetwork, require
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig, ModelOutput, positions_of
from lit_transformers.stacks.carried import Carried


class ReplacedConfig(RowModelConfig, kind="replaced"):
    """generator_depth: layers of the generator; masked: the share of symbols that it predicts and replaces."""

    gates: ClassVar[str] = "lit_transformers.gates.gates:BIDIRECTIONAL"

    @property
    def first_sees_all(self) -> bool:
        return True

    generator_depth: Positive = 1
    masked: Fraction = 0.15

    def build(self, data: DataDescription) -> Replaced:
        return Replaced(self, data)

    def depths(self) -> dict[str, int]:
        return {"depth": self.depth, "generator_depth": self.generator_depth}


class Replaced(RowNetwork):
    """The discriminator reads rows; in training it also learns which symbols the generator has replaced."""

    def __init__(self, config: ReplacedConfig, data: DataDescription) -> None:
        super().__init__()
        self.masked = config.masked
        self.tokens = config.tokens.build(data.vocabulary.size, config.dim)
        self.discriminator = config.build_stack("bidirectional", data.length)
        self.generator = config.override({"depth": config.generator_depth}).build_stack("bidirectional", data.length)
        self.norm, self.generator_norm = config.final_norm(), config.final_norm()
        self.mask, self.head = nn.Parameter(torch.randn(config.dim)), nn.Linear(config.dim, 1)
        config.initialise(self, self.tokens)

    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        ctx = Context(positions_of(symbols, None)[0], causal=False, padding_mask=padding_mask)
        aux = self.losses(symbols, ctx) if self.training else {}
        output = self.discriminator(self.tokens.embed(symbols), ctx)
        return ModelOutput(self.norm(output.y), None, {**output.aux, **aux})

    def losses(self, symbols: Int[Tensor, "b t"], ctx: Context) -> dict[str, Tensor]:
        """Returns the generator's loss at the symbols that it does not see, and the discriminator's at all symbols."""
        real = torch.ones_like(symbols, dtype=torch.bool) if ctx.padding_mask is None else ctx.padding_mask
        masked = (torch.rand(symbols.shape, device=symbols.device) < self.masked) & real
        x = torch.where(masked[..., None], self.mask, self.tokens.embed(symbols))
        hidden = self.generator_norm(self.generator(x, ctx).y)
        drawn = torch.distributions.Categorical(logits=self.tokens.log_probabilities(hidden.detach())).sample()
        replaced = torch.where(masked, drawn, symbols)
        logits = self.head(self.norm(self.discriminator(self.tokens.embed(replaced), ctx).y)).squeeze(-1)
        detection = F.binary_cross_entropy_with_logits(logits, (replaced != symbols).to(logits.dtype), reduction="none")
        predicted = self.tokens.nll(hidden, symbols)
        return {
            "generator": (predicted * masked).sum() / masked.sum().clamp(min=1),
            "discriminator": (detection * real).sum() / real.sum().clamp(min=1),
        }

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        stacks = 2 * self.discriminator.flops(length, 0, causal=False) + self.generator.flops(length, 0, causal=False)
        return stacks + self.tokens.flops(length) + 2 * length * self.head.in_features

    def softmax_flops(self, length: int) -> int:
        return 0


class DistilledConfig(LanguageModelConfig, kind="distilled"):
    """teacher: a model that reads segments in order, whose predictions the student learns from as well."""

    teacher: ModelConfig = LanguageModelConfig()

    def build(self, data: DataDescription) -> Distilled:
        return Distilled(self, data)

    def depths(self) -> dict[str, int]:
        return super().depths() | {f"teacher.{path}": layers for path, layers in self.teacher.depths().items()}

    def widths(self) -> dict[str, int]:
        return super().widths() | {f"teacher.{path}": width for path, width in self.teacher.widths().items()}


class Distilled(LanguageModel):
    """``state`` is {"student", "teacher"}: the state of each."""

    def __init__(self, config: DistilledConfig, data: DataDescription) -> None:
        super().__init__(config, data)
        teacher = require(config.teacher, CausalModelConfig, "distilled learns from")
        undropped = teacher.override({path: 0.0 for path, _ in teacher.leaves_with(Dropout)})
        self.teacher = undropped.build(data).requires_grad_(False)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        state: Any = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
        unbroken: int = 0,
    ) -> ModelOutput:
        state = state or {"student": None, "teacher": None}
        output = super().forward(symbols, state["student"], padding_mask, keep_layers, unbroken)
        with torch.no_grad():
            teacher = self.teacher(symbols, state["teacher"], padding_mask)
            expected = self.teacher.tokens.log_probabilities(teacher.hidden)
        divergence = F.kl_div(self.tokens.log_probabilities(output.hidden), expected, reduction="none", log_target=True)
        real = torch.ones_like(symbols, dtype=torch.bool) if padding_mask is None else padding_mask
        distance = (divergence.sum(dim=-1) * real).sum() / real.sum().clamp(min=1)
        states = {"student": output.state, "teacher": teacher.state}
        return output._replace(state=states, aux={**output.aux, "distillation": distance})

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        return super().flops(length, remembered) + self.tokens.flops(length) + self.teacher.flops(length, remembered)

    def carried(self, length: int) -> Carried:
        parts = super().carried(length), self.teacher.carried(length)
        return Carried(max(part.tokens for part in parts), sum(part.state_bytes for part in parts))

    def carries(self) -> bool:
        return super().carries() or self.teacher.carries()
