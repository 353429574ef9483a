"""What a part of a network may tell of itself to a reader, once it is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


class Observable(ABC):
    """A module whose calls say more than their output: a span that was learned, how many steps were taken."""

    @abstractmethod
    def observed(self, given: Sequence[Any], made: Any) -> Mapping[str, Tensor]:
        """Numbers (n,) by what they mean to a reader, one for each head or step, of one call of ``forward``: of what it
        was given, and what it made. Nothing where this call has nothing to tell."""
