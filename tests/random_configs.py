"""Configs drawn at random: plain data that the annotations of a config's fields admit."""

from __future__ import annotations

from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lit_transformers.config import Config, field_types

WHOLE = (0, 1, 2, 3, 4, 5, 8, 12)
"""Lengths that act within the rows of a probe, and 0 where a field may be it."""
FRACTIONS = (0.0, 0.01, 0.25, 0.5, 1.0, 1.3, 2.0)


def random_value(hint: Any, random: Random) -> Any:
    """Plain data that an annotation admits."""
    origin, members = get_origin(hint), get_args(hint)
    if hint is bool:
        return random.random() < 0.5
    if isinstance(hint, type) and issubclass(hint, Config):
        return random_fields(random.choice([*hint.kinds.values()] or [hint]), random)
    if origin is Literal:
        return random.choice(members)
    if origin in (Union, UnionType):
        member = random.choice(members)
        return None if member is NoneType else random_value(member, random)
    if origin is tuple:
        item_hints = members[:1] * random.randint(1, 3) if members[-1] is Ellipsis else members
        return [random_value(item_hint, random) for item_hint in item_hints]
    assert origin is Annotated, hint
    if members[0] not in (int, float):
        return random_value(members[0], random)
    limits = [limit for constraint in members[1:] if isinstance(constraint, FieldInfo) for limit in constraint.metadata]
    values = [value for value in (WHOLE if members[0] is int else FRACTIONS) if within(value, limits)]
    return random.choice(values)


def within(value: float, limits: list[Any]) -> bool:
    """Whether a number keeps all limits of its field."""
    tests = {"ge": value.__ge__, "gt": value.__gt__, "le": value.__le__, "lt": value.__lt__}
    return all(tests[name](getattr(limit, name)) for limit in limits for name in tests if hasattr(limit, name))


def random_fields(kind: type[Config], random: Random) -> dict[str, Any]:
    """Plain data of a config of this kind: each field drawn as often as left at its default."""
    hints = field_types(kind).items()
    fields = {name: random_value(hint, random) for name, hint in hints if random.random() < 0.5}
    return ({"kind": kind.kind} if kind.kind else {}) | fields
