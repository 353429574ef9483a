"""Self-distillation: a network also learns its outputs with the mean of its last weights (arXiv:2002.10345)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lit_transformers.config import Config, Positive, PositiveFloat

__all__ = ["PAST", "PastWeights", "SelfDistillationConfig"]

PAST = "past_weights"
"""The key, in a checkpoint, of the weights before the last updates."""


class SelfDistillationConfig(Config):
    """Self-distillation averaged, SDA (arXiv:2002.10345). The teacher of each update is the network with the mean of
    its weights before the last updates, without dropout.

    last: number K of averaged updates. The first update has no teacher; the second has the initial weights as teacher.
    weight: lambda, the factor of the mean squared difference between the outputs of student and teacher, before the
    softmax. Each update needs an additional forward pass, and memory for K + 1 copies of the trained weights.
    """

    last: Positive = 5
    weight: PositiveFloat = 1.0


class PastWeights:
    """The trained weights of a module before each of the last updates, and the present ones."""

    def __init__(self, last: int) -> None:
        self.before: deque[dict[str, Tensor]] = deque(maxlen=last + 1)
        self.is_updated = True

    def note(self, module: nn.Module) -> None:
        """Stores a copy of the present weights, once between two updates."""
        if self.is_updated:
            learning = ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)
            self.before.append({name: weight.detach().clone() for name, weight in learning})
            self.is_updated = False

    @property
    def is_teacher(self) -> bool:
        """Whether earlier weights than the present ones are stored."""
        return len(self.before) > 1

    @contextmanager
    def averaged(self, module: nn.Module) -> Iterator[None]:
        """Gives a module the mean of the earlier weights within the block. Needs ``is_teacher``."""
        *past, noted = self.before
        weights = {name: weight for name, weight in module.named_parameters() if name in noted}
        present = {name: weight.data for name, weight in weights.items()}
        try:
            for name, weight in weights.items():
                weight.data = torch.stack([step[name].to(weight) for step in past]).mean(dim=0)
            torch.clear_autocast_cache()  # it holds copies of the present weights
            yield
        finally:
            for name, weight in weights.items():
                weight.data = present[name]
            torch.clear_autocast_cache()

    def state(self) -> list[dict[str, Tensor]]:
        """Returns the stored weights, for a checkpoint between two updates."""
        return [*self.before]

    def restore(self, state: Sequence[Mapping[str, Tensor]]) -> None:
        """Restores the stored weights from a checkpoint."""
        self.before.clear()
        self.before.extend(dict(step) for step in state)
        self.is_updated = True
