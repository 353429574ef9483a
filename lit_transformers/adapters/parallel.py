"""Parallel adapters (He et al. 2021, arXiv:2110.04366, section 4.1 and table 1)."""

from __future__ import annotations

from typing import Annotated, Literal, final

from torch import nn

from lit_transformers.activations import Activation
from lit_transformers.adapters.adapter import AdapterConfig, Sublayer
from lit_transformers.adapters.bottleneck import Bottleneck
from lit_transformers.config import Positive, PositiveFloat, Width
from lit_transformers.mixer import Shape

__all__ = ["ParallelAdapterConfig"]


@final
class ParallelAdapterConfig(AdapterConfig, kind="parallel"):
    """A bottleneck that reads the input of a sublayer and is added to the sublayer's output. width: channels of the
    bottleneck; activation: of its hidden layer; scale: multiplies its output (the paper uses 4 for a feed-forward).
    sublayers: the sublayers of each block that get an adapter; the paper recommends the feed-forward (section 4.5)."""

    width: Annotated[Positive, Width] = 64
    activation: Activation = "relu"
    scale: PositiveFloat = 4.0
    sublayers: Literal["both", "mixer", "feedforward"] = "feedforward"

    def build(self, name: Sublayer, sublayer: nn.Module, shape: Shape) -> Bottleneck | None:
        place = "feedforward" if name == "feedforward" else "mixer"
        if self.sublayers not in ("both", place):
            return None
        return Bottleneck(self.width, self.activation, shape.dim, self.scale, reads_input=True)
