"""What a run's config may be made of: every place that takes one of several kinds, and what these say of themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from textwrap import indent
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from lit_transformers.config import Config, ConfigError, field_types, nearest


class Place(NamedTuple):
    """A path of a config, and the kinds that may stand there."""

    path: str
    kinds: Mapping[str, type[Config]]


def places(config: type[Config], prefix: str = "", seen: frozenset[type[Config]] = frozenset()) -> Iterator[Place]:
    """Every place of a config tree, each once, whichever kinds stand above it."""
    found: dict[str, dict[str, type[Config]]] = {}
    for name, hint in field_types(config).items():
        for part in parts(hint):
            if part in seen:
                continue
            path = f"{prefix}{name}"
            if part.kinds:
                found[path] = found.get(path, {}) | dict(part.kinds)
            for kind in part.kinds.values() or [part]:
                for place in places(kind, f"{path}.", seen | {part}):
                    found[place.path] = found.get(place.path, {}) | dict(place.kinds)
    yield from (Place(path, kinds) for path, kinds in found.items())


def parts(hint: Any) -> list[type[Config]]:
    """The configs that an annotation admits."""
    if isinstance(hint, type) and issubclass(hint, Config):
        return [hint]
    if get_origin(hint) in (Union, UnionType, tuple):
        return [part for member in get_args(hint) for part in parts(member)]
    return []


def described(config: type[Config], path: str | None) -> Iterator[str]:
    """Every place in a line with the names of its kinds; or one place, with what each kind says of itself.

    Raises ConfigError where no kinds are to be chosen at ``path``.
    """
    found = {place.path: place.kinds for place in places(config)}
    if path is None:
        yield from (f"{place}: {', '.join(kinds)}" for place, kinds in found.items())
        return
    if path not in found:
        raise ConfigError(f"no kinds are to be chosen there; {nearest(path, found)}", path)
    for name, kind in found[path].items():
        yield f"{name}\n{indent(inspect.getdoc(kind) or '', '    ')}\n"
