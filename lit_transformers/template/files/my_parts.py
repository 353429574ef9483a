"""Parts of my own: a mixer and a data set."""

from __future__ import annotations

import math
from random import Random
from typing import Annotated, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from datamodules.core.examples import Example, SyntheticConfig
from lit_transformers.batch import ClassLabels, LabelledDescription, Vocabulary
from lit_transformers.config import Length, Positive
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape


@final
class DecayConfig(MixerConfig, kind="decay"):
    """horizon: tokens after which the weight of an input has fallen to 1/e."""

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
        self.keep = math.exp(-1 / config.horizon)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        """x (b, t, d) to y (b, t, d). Padding leaves the sum as it is."""
        total = x.new_zeros(x.size(0), x.size(2)) if state is None else state
        sums = []
        for t in range(x.size(1)):
            after = self.keep * total + x[:, t]
            total = after if ctx.padding_mask is None else torch.where(ctx.padding_mask[:, t, None], after, total)
            sums.append(total)
        return MixerOutput(self.out(torch.stack(sums, dim=1)), total)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """Those of the linear map, 2 for a multiply-add."""
        return 2 * queries * self.out.in_features * self.out.out_features


@final
class MajorityConfig(SyntheticConfig, kind="majority"):
    """Rows of two symbols, labelled by the one that is more frequent. ``pairs``: half their length, less one symbol."""

    pairs: Positive = 8

    @property
    def description(self) -> LabelledDescription:
        vocabulary = Vocabulary(size=3, boundary=2, unit="word", byte_lengths=None)
        return LabelledDescription(vocabulary=vocabulary, length=2 * self.pairs + 2, labels=ClassLabels(count=2))

    def make(self, chance: Random) -> Example:
        """Makes a row of an odd number of symbols, so that one of them is more frequent."""
        symbols = np.array([chance.randrange(2) for _ in range(2 * self.pairs + 1)], np.int64)
        return Example(symbols, int(symbols.sum() > self.pairs))
