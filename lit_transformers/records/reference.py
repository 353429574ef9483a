"""A value of a metric that is known before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from lit_transformers.records.schema import Number

__all__ = ["Reference"]


@dataclass(frozen=True)
class Reference:
    """A value of the metric that is known before anything is trained, by the name of the knowledge that a model of this
    value has."""

    name: str
    value: Number
