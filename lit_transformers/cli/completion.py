"""What a shell completes of the arguments of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["completed_from"]


def completed_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns what completes an argument from names, which are listed only when a shell asks: those that begin with
    what is typed, in their order."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
