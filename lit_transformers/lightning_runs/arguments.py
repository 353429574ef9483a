"""Arguments of functions and classes as plain data, checked against their signatures."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict as PydanticConfig
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from lit_transformers.class_path import import_class
from lit_transformers.config import ConfigError, Plain, nearest, reason_of

__all__ = ["as_class", "build", "checked_arguments", "class_paths", "expected_classes", "files_named"]

CLASS_PATH, INIT_ARGS = "class_path", "init_args"
"""The keys of an argument that is an object itself: its class and the arguments of that, as LightningCLI has them."""


def checked_arguments(function: Callable[..., Any], arguments: Mapping[str, Plain], name: str) -> dict[str, Any]:
    """Returns arguments, by name, with the types of their annotations: a tuple for a list, a Path for a string.

    function: the function or class that takes them; name: its name in errors. An annotation that pydantic does not know
    is not checked, and an argument that is an object itself is left as it is.
    Raises ConfigError, at the argument, for one that is unknown, missing or of another type.
    """
    parameters = {p.name: p for p in inspect.signature(function).parameters.values()}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for argument in arguments:
        if argument not in named and not takes_any:
            raise ConfigError(f"{name} takes no argument {argument!r}; {nearest(argument, named)}", argument)
    for argument, parameter in named.items():
        if parameter.default is parameter.empty and argument not in arguments:
            raise ConfigError(f"{name} needs a value for {argument!r}", argument)
    hints = _annotations(function)
    return {n: value if as_class(value) else _typed(value, hints.get(n, Any), n) for n, value in arguments.items()}


def expected_classes(function: Callable[..., Any], argument: str) -> tuple[type[Any], ...]:
    """Returns the classes of which an argument may be an object, by its annotation; ``object`` where that says nothing
    of classes."""
    return _classes_in(_annotations(function).get(argument, Any))


def _classes_in(hint: Any) -> tuple[type[Any], ...]:
    origin, members = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _classes_in(members[0])
    if origin in (Union, UnionType):
        return tuple(named for member in members if member is not NoneType for named in _classes_in(member))
    return (hint,) if isinstance(hint, type) and origin is None and hint is not Any else (object,)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the types of the arguments; none where a name in an annotation cannot be resolved."""
    annotated = function.__init__ if isinstance(function, type) else inspect.unwrap(function)  # type: ignore[misc]
    try:
        return get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _typed(value: Plain, hint: Any, name: str) -> Any:
    """Returns a value of plain data as its annotation has it. Raises ConfigError for one of another type."""
    try:
        text = json.dumps(value)
        adapter = TypeAdapter(hint, config=PydanticConfig(arbitrary_types_allowed=True))
    except PydanticUserError:
        return value
    except (TypeError, ValueError):
        raise ConfigError(f"an argument is plain data, or {{{CLASS_PATH}, {INIT_ARGS}}}; got {value!r}", name) from None
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if "isinstance" in first["type"] or "isinstance" in first["msg"]:
            reason = f"an object is written {{{CLASS_PATH}: ..., {INIT_ARGS}: ...}}; got {value!r}"
            raise ConfigError(reason, name) from None
        raise ConfigError(reason_of(first), name) from None
    except PydanticUserError:
        return value


def as_class(value: Plain) -> bool:
    """Whether an argument stands for an object, by its class and the arguments of that."""
    return isinstance(value, Mapping) and CLASS_PATH in value and {*value} <= {CLASS_PATH, INIT_ARGS}


def build(class_path: str, init_args: Mapping[str, Plain]) -> Any:
    """Builds an object, and those that its arguments stand for. Raises ConfigError as ``checked_arguments`` does."""
    built_class = import_class(class_path)
    arguments = checked_arguments(built_class, init_args, built_class.__name__)
    objects = {
        name: build(value[CLASS_PATH], value.get(INIT_ARGS, {})) for name, value in init_args.items() if as_class(value)
    }
    return built_class(**arguments | objects)


def class_paths(class_path: str, init_args: Mapping[str, Plain]) -> list[str]:
    """Returns the class of an object and those of its arguments."""
    nested = (value for value in init_args.values() if as_class(value))
    return [
        class_path,
        *(path for value in nested for path in class_paths(value[CLASS_PATH], value.get(INIT_ARGS, {}))),
    ]


def files_named(plain: Plain) -> list[Path]:
    """Returns the files and folders that strings anywhere in plain data are the paths of."""
    if isinstance(plain, Mapping):
        return [path for value in plain.values() for path in files_named(value)]
    if isinstance(plain, list | tuple):
        return [path for value in plain for path in files_named(value)]
    is_path = isinstance(plain, str) and plain.strip(". ") and len(plain) < 1000 and "\0" not in plain
    return [path] if is_path and (path := Path(plain)).exists() else []
