"""A published run that was trained again: its value of the study's metric then and now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_transformers.records.schema import Number

__all__ = ["Reproduction"]


@dataclass(frozen=True)
class Reproduction:
    """The value of the study's metric of an arm's run of one seed: as it is published, and when the run was repeated.

    environment: versions, hardware and commit of the repeated run, as in its record.
    """

    arm: str
    seed: int
    published: Number
    repeated: Number
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether both values are the same number, to the last digit."""
        return self.published == self.repeated
