"""What heads learn from a teacher besides labels: its outputs."""

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
"""The part of a reading in training that holds a ``Teacher``, where there is one."""


class TaughtHead(Head):
    """A head that can learn the outputs which the same head of a teacher has."""

    @abstractmethod
    def outputs(self, reading: Representation, batch: Any) -> Float[Tensor, "*n"]:
        """Returns the outputs for the rows of a batch, in float32 or finer, before any softmax."""

    @abstractmethod
    def divergence(
        self, outputs: Float[Tensor, "*n"], taught: Float[Tensor, "*n"], temperature: float
    ) -> Float[Tensor, "*m"]:
        """Returns KL(teacher || student) of the predictions of each target, in nats, given the outputs of a student and
        of its teacher, both of which are divided by a temperature first."""


class Teacher(NamedTuple):
    """What heads are to predict besides labels.

    outputs: those of the teacher, by the head of the student that learns them. weight: the factor of their distance
    from the outputs of the student. labels: the factor of the loss by labels. temperature: T, where the distance is
    T^2 times ``TaughtHead.divergence`` at T (arXiv:1503.02531, section 2); None where it is the mean squared difference
    of outputs (arXiv:2002.10345).
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
        """Returns the weighted sum of the loss of a head by labels and of its distance from the teacher. outputs: those
        of the student. counted: the targets that count, which padding and targets without a label do not."""
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
    """Returns KL(p || q), in nats, of p = softmax(taught / T) and q = softmax(logits / T). What is -inf in ``taught``
    has the probability 0 and no part."""
    expected, own = ((part / temperature).log_softmax(dim=-1) for part in (taught, logits))
    difference = (expected - own).masked_fill(taught == -torch.inf, 0.0)
    return (expected.exp() * difference).sum(dim=-1)
