"""A mixer, a head with its objective, and a data set, from outside of the library: classes and their configs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Annotated, Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from datamodules.core.examples import Example, SyntheticConfig
from lit_transformers.batch import ClassLabels, DataDescription, LabelledDescription, Vocabulary
from lit_transformers.config import Length, Positive
from lit_transformers.heads import ClassLabelConfig
from lit_transformers.heads.pooled import ClassLabel
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.tasks.classification import ClassificationConfig


@final
class DecayConfig(MixerConfig, kind="decay"):
    """horizon: tokens after which the weight of an input is 1/e of its first one."""

    horizon: Annotated[Positive, Length] = 4

    def promises(self) -> Promises:
        return Promises(
            ("causal",),
            streams=True,
            refusals={
                "bidirectional": "a sum of earlier inputs knows no later ones",
                "cross": "inputs decay along one sequence; across two there is no distance",
            },
        )

    def build(self, shape: Shape) -> Decay:
        return Decay(self, shape)


@final
class Decay(Mixer):
    """A sum of all earlier inputs, which decays exponentially. ``state`` is the sum (b, d) after the last token."""

    def __init__(self, config: DecayConfig, shape: Shape) -> None:
        super().__init__()
        self.keep = float(np.exp(-1 / config.horizon))
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        total = x.new_zeros(x.size(0), x.size(2)) if state is None else state
        sums = []
        for t in range(x.size(1)):
            after = self.keep * total + x[:, t]
            total = after if ctx.padding_mask is None else torch.where(ctx.padding_mask[:, t, None], after, total)
            sums.append(total)
        return MixerOutput(self.out(torch.stack(sums, dim=1)), total)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 2 * queries * self.out.in_features * self.out.out_features


@final
class ParityConfig(SyntheticConfig, kind="parity"):
    """The label is the parity of ``length`` bits."""

    train: Positive = 64
    validation: Positive = 16
    test: Positive = 16
    length: Positive = 9

    def conflicts(self) -> Iterator[str]:
        yield from ()

    @property
    def description(self) -> LabelledDescription:
        vocabulary = Vocabulary(size=3, boundary=2, unit="word", byte_lengths=None)
        return LabelledDescription(vocabulary=vocabulary, length=self.length + 1, labels=ClassLabels(count=2))

    def make(self, chance: Random) -> Example:
        bits = np.array([chance.randrange(2) for _ in range(self.length)], np.int64)
        return Example(bits, int(bits.sum() % 2))


@final
class MarginConfig(ClassLabelConfig, kind="margin"):
    """The multi-class hinge loss (Crammer and Singer 2001) in place of the cross-entropy."""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> Margin:
        return Margin(self, model.dim, self.outputs(data))


@final
class Margin(ClassLabel):
    """The loss of an example is how far its class stays below any other, plus a margin of 1."""

    def nats(self, outputs: Float[Tensor, "b o"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        return nn.functional.multi_margin_loss(outputs, labels, reduction="none") * outputs.size(1)


@final
class HingeConfig(ClassificationConfig, kind="hinge"):
    """Classification by margins."""

    def head(self) -> MarginConfig:
        return MarginConfig(pooling=self.pooling, dropout=self.dropout)
