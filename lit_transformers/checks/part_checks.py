"""The common base of the checks of parts from outside: the type of checks, and other values for the fields of a
config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from lit_transformers.config import Config, ConfigError, field_types
from lit_transformers.gates.gates import Broken
from lit_transformers.records.record import Gate

__all__ = ["PartChecks", "changed", "is_written_and_read", "other_value", "require_effects"]

PartChecks = Iterator[tuple[str, Callable[[], str | list[Gate]]]]
"""The checks of a part by name. Each returns its measurement, or the results of gates, and raises Broken with the fault
and the remedy."""

Part = TypeVar("Part", bound=Config)


def is_written_and_read(case: Config) -> str:
    """Checks that a config is read as it was written."""
    again = type(case).from_dict(case.to_dict())
    if again != case:
        raise Broken(
            f"{case.to_dict()} is read as {again.to_dict()}; hold plain values and configs alone in its fields"
        )
    return "equal"


def other_value(value: Any, hint: Any) -> Any:
    """Returns a value of the type of a field that is not ``value``. Raises TypeError where none follows from the
    type."""
    if get_origin(hint) is Annotated:
        return other_value(value, get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not NoneType]
        if members == [int] or get_origin(members[0]) is Annotated:
            return 3 if value == 2 else 2
        return other_value(value, members[0])
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if hint is bool:
        return not value
    if hint is int:
        return value + 1
    if hint is float:
        return 2 * value if value >= 0.5 else value + 0.3
    raise TypeError(f"no other value follows from {hint}")


def changed(case: Part) -> Iterator[tuple[str, Part]]:
    """Yields a config for each field whose other value follows from its type, with that value."""
    for name, hint in field_types(type(case)).items():
        for value in _other_values(getattr(case, name), hint):
            try:
                part = case.override({name: value})
            except ConfigError:
                continue
            yield name, part
            break


def _other_values(value: Any, hint: Any) -> Iterator[Any]:
    """Yields other values of a field, the half of a number last, which may not be larger."""
    with suppress(TypeError):
        yield other_value(value, hint)
    if isinstance(value, float) and value:
        yield value / 2


def require_effects(
    case: Part, alike: Callable[[Part, Part], bool], of: str, but_for: Sequence[str] = (), together: bool = False
) -> str:
    """Raises Broken with the fields whose other value changes nothing.

    alike: whether two configs give equal results. of: the results that fields should change, in words. but_for: fields
    that are not tried. together: a field may also act where another one has its other value.
    """
    others = {name: part for name, part in changed(case) if name not in but_for}

    def acts(name: str) -> bool:
        beside = (part for other, part in others.items() if together and other != name)
        pairs = ((part, dict(changed(part)).get(name)) for part in beside)
        return not alike(others[name], case) or any(other and not alike(other, part) for part, other in pairs)

    if inert := [name for name in others if not acts(name)]:
        raise Broken(f"no effect on {of}: {', '.join(inert)}; read them, or remove them")
    skipped = [name for name in field_types(type(case)) if name not in others]
    return f"{len(others)} fields{', not tried: ' + ', '.join(skipped) if skipped else ''}"
