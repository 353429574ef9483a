"""A family from outside of the library with adapters inside its blocks, which alone learn.

Either a bottleneck after every sublayer (arXiv:1902.00751, section 2.1), or maps of low rank beside two of those of
the mixer (arXiv:2106.09685, section 4).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Positive, Width
from lit_transformers.mixer import Shape
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.stacks.block import Adapter

NEAR_IDENTITY = 1e-2
"""The standard deviation of the weights that map back to the width of the model (arXiv:1902.00751, section 3.6)."""


class AdaptedConfig(LanguageModelConfig, kind="adapted"):
    """rank: channels of a bottleneck, or the rank of a map."""

    adapter: Literal["bottleneck", "low_rank"] = "bottleneck"
    rank: Annotated[Positive, Width] = 4

    def build(self, data: DataDescription) -> LanguageModel:
        network = super().build(data).requires_grad_(False)
        for module in network.modules():
            if isinstance(module, Adapter | LowRank):
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(True)
        return network

    def build_adapter(self, name: str, sublayer: nn.Module, shape: Shape) -> Adapter | None:
        if self.adapter == "bottleneck":
            return Bottleneck(shape.dim, self.rank)
        return LowRankMaps(sublayer, self.rank) if name == "mixer" else None


class Bottleneck(Adapter):
    """y + W_up relu(W_down y)."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.empty(dim, rank)), nn.Parameter(torch.empty(rank, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.size(0) ** -0.5)
        nn.init.normal_(self.up, std=NEAR_IDENTITY)

    def forward(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return y + (y @ self.down).relu() @ self.up

    def flops(self, queries: int) -> int:
        return 4 * queries * self.down.numel()


class LowRank(nn.Module):
    """W x + B A x, beside a linear map that is as it was."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.empty(linear.in_features, rank))
        self.up = nn.Parameter(torch.empty(rank, linear.out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.linear.in_features**-0.5)
        nn.init.normal_(self.up, std=NEAR_IDENTITY)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t w"]:
        return self.linear(x) + x @ self.down @ self.up


class LowRankMaps(Adapter):
    """Puts maps of low rank beside those of queries and outputs, and passes the sublayer's output on as it is."""

    def __init__(self, sublayer: nn.Module, rank: int) -> None:
        super().__init__()
        sublayer.query, sublayer.merge = LowRank(sublayer.query, rank), LowRank(sublayer.merge, rank)
        self.size = sum(part.down.numel() + part.up.numel() for part in (sublayer.query, sublayer.merge))

    def forward(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return y

    def flops(self, queries: int) -> int:
        return 2 * queries * self.size
