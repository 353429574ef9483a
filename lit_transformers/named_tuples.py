"""Named tuples with changed fields, in a form that ``torch.compile`` follows."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

__all__ = ["with_fields"]

Fields = TypeVar("Fields", bound=NamedTuple)


def with_fields(values: Fields, **changes: Any) -> Fields:
    """Returns the named tuple with some fields changed. Raises TypeError for the name of no field.

    In torch 2.11 a tuple that ``_replace`` returns in a compiled function cannot outlast a break of its graph.
    """
    return type(values)(**{**values._asdict(), **changes})  # type: ignore[call-overload]
