"""Base of the schemas of records and plans: frozen dataclasses that one side fills and the other reads.

Reading checks every value against its annotation and ignores fields that are unknown. A number stays as its file has
it, whole or not, so that a plan that is read and written again is the same file; ``dump`` turns it into a float.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from lit_transformers.config import ConfigError, Plain, reason_of

__all__ = ["IF_ANY", "LEFT_OUT", "Checked", "Label", "Name", "Number", "dump", "first_fault", "parse", "to_plain"]

T = TypeVar("T")

Name = Annotated[str, Field(min_length=1)]

Label = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else json.dumps(value))]
"""The name of a level, or anything else that is printed and compared but never computed with; numbers become text."""


def _unchanged(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    validate(value)
    return value


Number = Annotated[
    float, Field(strict=True), WrapValidator(_unchanged), PlainSerializer(float, return_type=float, when_used="json")
]
"""A JSON number; a string or a boolean in its place is an error."""


LEFT_OUT = Field(exclude=True)
"""Marks a field that ``results.jsonl`` leaves out."""


IF_ANY = Field(exclude_if=lambda value: not value)
"""Marks a field that files leave out where it is empty."""


class Checked:
    """Base of dataclasses that people fill in: every field is validated strictly at construction."""

    def __post_init__(self) -> None:
        for name, adapter in _adapters(cast(Any, type(self))).items():
            try:
                adapter.validate_python(getattr(self, name))
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in (name, *first["loc"]))
                raise ConfigError(reason_of(first), place) from None
        self.check()

    def check(self) -> None:
        """Hook: raises ConfigError where fields that are valid by themselves contradict each other."""


@cache
def _adapters(part: type[Any]) -> dict[str, TypeAdapter[Any]]:
    hints = typing.get_type_hints(part, include_extras=True)
    return {field.name: _strict_adapter(hints[field.name]) for field in dataclasses.fields(part)}


def _strict_adapter(hint: Any) -> TypeAdapter[Any]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return TypeAdapter(InstanceOf[hint])
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def parse(schema: type[T], plain: Plain) -> T:
    """Builds an object of a schema from plain data. Raises pydantic's ValidationError, a ValueError, which
    ``first_fault`` names by its place."""
    value: T = _reader(cast(Any, schema)).validate_python(plain)
    return value


def to_plain(value: Any) -> Plain:
    """Returns an object of a schema as plain data: mappings, lists and values, numbers as they are."""
    if dataclasses.is_dataclass(value):
        values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        optional = _left_out_if_empty(cast(Any, type(value)))
        return {name: to_plain(one) for name, one in values.items() if one or name not in optional}
    if isinstance(value, Mapping):
        return {name: to_plain(entry) for name, entry in value.items()}
    return [to_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@cache
def _left_out_if_empty(part: type[Any]) -> frozenset[str]:
    """Returns the names of the fields that files leave out where they are empty."""
    hints = typing.get_type_hints(part, include_extras=True)
    return frozenset(name for name, hint in hints.items() if IF_ANY in typing.get_args(hint)[1:])


def dump(value: Any) -> dict[str, Plain]:
    """Returns an object as ``results.jsonl`` holds it: every Number as a float, without the fields that it omits."""
    plain: dict[str, Plain] = _reader(cast(Any, type(value))).dump_python(value, mode="json")
    return plain


@cache
def _reader(schema: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def first_fault(error: Exception) -> str:
    """Returns the message of an error as one line that names the place in a file and no folder of this machine."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(part if part.isprintable() else repr(part) for part in map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)
