"""The completion of arguments of a command in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["completed_from"]


def completed_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns a function that completes an argument by the names that begin with the typed text, in their order.
    ``names`` is called only when a shell requests a completion."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
