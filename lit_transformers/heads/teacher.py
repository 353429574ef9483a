"""Heads that learn the outputs of a teacher in addition to labels (arXiv:1503.02531)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lit_transformers.heads.head import Head, Representation

__all__ = ["TEACHER", "TaughtHead", "Teacher", "divergence"]

TEACHER = "teacher"
"""The key of the ``Teacher`` in ``Representation.parts`` in training; absent without a teacher."""


class TaughtHead(Head):
    """A head that can learn the outputs of the same head of a teacher."""

    @abstractmethod
    def outputs(self, reading: Representation, batch: Any) -> Float[Tensor, "*n"]:
        """Returns the outputs for the rows of a batch, before any softmax, in float32 or higher precision."""

    @abstractmethod
    def divergence(
        self, outputs: Float[Tensor, "*n"], taught: Float[Tensor, "*n"], temperature: float
    ) -> Float[Tensor, "*m"]:
        """Returns KL(teacher || student) of the predictions for each target, in nats, given the outputs of the student
        and of the teacher. Both are divided by ``temperature`` first."""


class Teacher(NamedTuple):
    """The targets of heads in addition to labels.

    outputs: the teacher's outputs, by the head of the student that learns them. weight: the factor of the distance
    between the outputs of student and teacher. labels: the factor of the loss by labels. temperature: T; the distance
    is T^2 times ``TaughtHead.divergence`` at T (arXiv:1503.02531, section 2). None: the distance is the mean squared
    difference of outputs (arXiv:2002.10345).
    """

    outputs: Mapping[TaughtHead, Tensor]
    weight: float
    labels: float = 1.0
    temperature: float | None = None

    def joined(
        self,
        of_labels: Float[Tensor, ""],
        head: TaughtHead,
        outputs: Float[Tensor, "*n"],
        counted: Bool[Tensor, "*m"],
    ) -> Float[Tensor, ""]:
        """Returns the weighted sum of a head's loss by labels and its distance from the teacher. outputs: the student's
        outputs. counted: True for targets that count, False for padding and for targets without a label."""
        total = self.labels * of_labels
        if head not in self.outputs:
            return total
        taught = self.outputs[head]
        if self.temperature is None:
            distance = (outputs - taught).square().mean(dim=1)
        else:
            distance = self.temperature**2 * head.divergence(outputs, taught, self.temperature)
        return total + self.weight * distance.masked_fill(~counted, 0.0).sum()


def divergence(logits: Float[Tensor, "*n c"], taught: Float[Tensor, "*n c"], temperature: float) -> Float[Tensor, "*n"]:
    """Returns KL(p || q), in nats, of p = softmax(taught / T) and q = softmax(logits / T) (arXiv:1503.02531, section
    2). Classes with ``taught`` of -inf have probability 0 and add nothing."""
    expected, own = ((part / temperature).log_softmax(dim=-1) for part in (taught, logits))
    difference = (expected - own).masked_fill(taught == -torch.inf, 0.0)
    return (expected.exp() * difference).sum(dim=-1)
