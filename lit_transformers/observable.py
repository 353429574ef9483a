"""Observations of modules of a network in a pass: the interface of modules that report them, and a record of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn


class Observable(ABC):
    """A module whose calls have more to report than their output: a learned span, the number of steps taken."""

    @abstractmethod
    def observed(self, inputs: Sequence[Any], output: Any) -> Mapping[str, Tensor]:
        """Returns the observations of one call of ``forward``: numbers (n,), one for each head or step, by a
        description for the reader.

        inputs, output: the arguments of the call and its result. Empty where there is nothing to report.
        """


class ModuleCall(NamedTuple):
    """One call of a module: its arguments and its output."""

    name: str
    module: nn.Module
    inputs: Sequence[Any]
    output: Any


@contextmanager
def recorded_calls(modules: Mapping[str, nn.Module]) -> Iterator[list[ModuleCall]]:
    """Records every call of the modules within the block, in order."""
    calls: list[ModuleCall] = []

    def record(name: str, module: nn.Module) -> Any:
        return module.register_forward_hook(
            lambda module, inputs, output: calls.append(ModuleCall(name, module, inputs, output))
        )

    handles = [record(name, module) for name, module in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
