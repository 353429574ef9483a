"""The base of quantisations of weights and of inputs, which act after training or in it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lit_transformers.compression.compression import Compression, CompressionConfig

__all__ = ["Quantise", "QuantiseConfig"]


class QuantiseConfig(CompressionConfig, ABC):
    """Base of the configs of quantisations. bits: of a number. when: ``after`` training; or ``during``, from the share
    ``begin`` of the updates on: each forward pass reads quantised numbers, and gradients pass as if it did not (the
    straight-through estimator, arXiv:1308.3432)."""

    bits: Annotated[int, Field(ge=2, le=8)] = 8
    symmetric: bool = True
    when: Literal["after", "during"] = "after"
    begin: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.begin and self.when == "after":
            yield "begin is the start of training with quantised numbers; set when: during, or begin: 0"


class Quantise(Compression):
    """Knows when forward passes of training read quantised numbers."""

    def __init__(self, config: QuantiseConfig) -> None:
        self._from = config.begin if config.when == "during" else None
        self._done = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next forward pass of training reads quantised numbers."""
        return self._from is not None and self._done >= self._from

    def after_step(self, done: float) -> None:
        self._done = done

    def state_dict(self) -> dict[str, Tensor]:
        return {"done": torch.tensor(self._done, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._done = float(state["done"])
