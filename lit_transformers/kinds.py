"""Lists the choices in a run's config: every path that takes one of several kinds, and the docstrings of the kinds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from textwrap import indent
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from lit_transformers.config import Config, ConfigError, field_types, nearest, without_roles


class Place(NamedTuple):
    """A path of a config, and the kinds that it may take."""

    path: str
    kinds: Mapping[str, type[Config]]


def places(config: type[Config], prefix: str = "", seen: frozenset[type[Config]] = frozenset()) -> Iterator[Place]:
    """Yields every place of a config tree once, under all kinds that may stand above it, and none within a config of
    the same class as one around it."""
    seen |= {config}
    kinds_by_path: dict[str, dict[str, type[Config]]] = {}
    for name, hint in field_types(config).items():
        for part in parts(hint):
            if part in seen:
                continue
            path = f"{prefix}{name}"
            if part.kinds:
                kinds_by_path[path] = kinds_by_path.get(path, {}) | dict(part.kinds)
            for kind in part.kinds.values() or [part]:
                for place in places(kind, f"{path}.", seen | {part}):
                    kinds_by_path[place.path] = kinds_by_path.get(place.path, {}) | dict(place.kinds)
    yield from (Place(path, kinds) for path, kinds in kinds_by_path.items())


def parts(hint: Any) -> list[type[Config]]:
    """Returns the config classes that an annotation admits."""
    hint = without_roles(hint)
    if isinstance(hint, type) and issubclass(hint, Config):
        return [hint]
    if get_origin(hint) in (Union, UnionType, tuple, dict):
        return [part for member in get_args(hint) for part in parts(member)]
    return []


def described(config: type[Config], path: str | None) -> Iterator[str]:
    """Yields a line for every place with the names of its kinds; or, for one place, each kind with its docstring.

    Raises ConfigError where no kinds are to be chosen at ``path``.
    """
    kinds_by_path = {place.path: place.kinds for place in places(config)}
    if path is None:
        yield from (f"{place}: {', '.join(kinds)}" for place, kinds in kinds_by_path.items())
        return
    if path not in kinds_by_path:
        raise ConfigError(f"no kinds are to be chosen there; {nearest(path, kinds_by_path)}", path)
    for name, kind in kinds_by_path[path].items():
        yield f"{name}\n{indent(inspect.getdoc(kind) or '', '    ')}\n"
