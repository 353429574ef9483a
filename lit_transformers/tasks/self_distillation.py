"""Self-distillation: a network also learns the outputs of the mean of its last weights (arXiv:2002.10345)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lit_transformers.config import Config, Positive, PositiveFloat

__all__ = ["PAST", "PastWeights", "SelfDistillationConfig"]

PAST = "past_weights"
"""The key of the weights before the last updates in a checkpoint."""


class SelfDistillationConfig(Config):
    """The teacher of each update has the mean of the weights before the last few updates, and drops nothing
    (arXiv:2002.10345, self-distillation averaged, SDA).

    last: the number K of these weights; the first update has no teacher, the second one that of one weight. weight:
    lambda, the factor of the mean squared difference of the outputs of student and teacher, before the softmax. Each
    update needs one more forward pass, and memory for K + 1 copies of the weights that learn.
    """

    last: Positive = 5
    weight: PositiveFloat = 1.0


class PastWeights:
    """The weights of a module that learn, as they were before each of the last updates, the present ones included."""

    def __init__(self, last: int) -> None:
        self.before: deque[dict[str, Tensor]] = deque(maxlen=last + 1)
        self.is_updated = True

    def note(self, module: nn.Module) -> None:
        """Notes the present weights, once between two updates."""
        if self.is_updated:
            learning = ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)
            self.before.append({name: weight.detach().clone() for name, weight in learning})
            self.is_updated = False

    @property
    def is_teacher(self) -> bool:
        """Whether there are weights before the present ones."""
        return len(self.before) > 1

    @contextmanager
    def averaged(self, module: nn.Module) -> Iterator[None]:
        """Gives a module the mean of the weights before the present ones within the block. There must be some."""
        *past, noted = self.before
        weights = {name: weight for name, weight in module.named_parameters() if name in noted}
        present = {name: weight.data for name, weight in weights.items()}
        try:
            for name, weight in weights.items():
                weight.data = torch.stack([step[name].to(weight) for step in past]).mean(dim=0)
            torch.clear_autocast_cache()  # which holds copies of the present weights
            yield
        finally:
            for name, weight in weights.items():
                weight.data = present[name]
            torch.clear_autocast_cache()

    def state(self) -> list[dict[str, Tensor]]:
        """Returns the weights for a checkpoint between two updates."""
        return [*self.before]

    def restore(self, state: Sequence[Mapping[str, Tensor]]) -> None:
        """Continues from the weights of a checkpoint."""
        self.before.clear()
        self.before.extend(dict(step) for step in state)
        self.is_updated = True
