"""The interface of modules that report what a trained network does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


class Observable(ABC):
    """A module whose calls have more to report than their output: a learned span, the number of steps taken."""

    @abstractmethod
    def observed(self, inputs: Sequence[Any], output: Any) -> Mapping[str, Tensor]:
        """Returns what one call of ``forward`` shows: numbers (n,), one for each head or step, by a description for the
        reader.

        inputs, output: the arguments of the call and what it returned. Empty where there is nothing to report.
        """
