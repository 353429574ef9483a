"""The fields and values of a config as a JSON schema (draft 2020-12), with the descriptions in its docstrings.

An editor that reads the schema completes names and kinds and marks errors. Impossible combinations of fields,
``conflicts``, are outside of it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter

from lit_transformers.config import Config, Plain, field_types, plain_of, without_roles
from lit_transformers.kinds import parts

__all__ = ["config_schema", "default_of", "docs_of", "leaf_schema", "required_fields", "summary_of"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REQUIRED = object()
"""The default of a field that has none."""


def config_schema(config: type[Config]) -> dict[str, Plain]:
    """Returns the schema of a config's plain data: a definition for each class, ``oneOf`` where there are kinds."""
    definitions: dict[str, Plain] = {}
    reference = _reference(config, definitions)
    return {"$schema": DIALECT, "title": config.__name__, **reference, "$defs": definitions}


def leaf_schema(hint: Any) -> dict[str, Plain]:
    """Returns the schema of a field that holds no config: its type, its range or its choices."""
    return dict(TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).json_schema())


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns a field's default, or REQUIRED."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def required_fields(config: type[Config]) -> list[str]:
    """Returns the names of a config's fields without a default."""
    return [field.name for field in dataclasses.fields(config) if default_of(field) is REQUIRED]  # type: ignore[arg-type]


def docs_of(config: type[Config]) -> dict[str, str]:
    """Returns the descriptions of fields in the docstrings of a config and of its bases, by field, each as one line.

    Read are ``name: text`` at the begin of a line or a sentence, ``a, b: text`` of several fields, and a table with two
    spaces or more between a name at the margin and its text. A text ends with its paragraph or with the next name.
    """
    docs: dict[str, str] = {}
    for base in _documented(config):
        text = inspect.cleandoc(base.__doc__ or "")
        heads = [*_heads(config, text)]
        ends = [head.start() for head in heads[1:]] + [len(text)] * bool(heads)
        for head, end in zip(heads, ends, strict=True):
            paragraph = text[head.end() : end].partition("\n\n")[0]
            for name in re.findall(r"\w+", head["names"]):
                docs.setdefault(name, " ".join(paragraph.split()).rstrip(";"))
    return docs


def summary_of(config: type[Config]) -> str:
    """Returns the first paragraph of a config's docstring as one line, without the descriptions of single fields."""
    text = inspect.cleandoc(next((base.__doc__ or "" for base in _documented(config)), ""))
    first = next(_heads(config, text), None)
    return " ".join(text[: first.start() if first else None].partition("\n\n")[0].split())


def _documented(config: type[Config]) -> list[type]:
    """Returns the classes of a config whose docstring was written by hand, and not by ``dataclass``."""
    bases = [base for base in config.__mro__ if issubclass(base, Config) and base is not Config]
    return [base for base in bases if base.__doc__ and not base.__doc__.startswith(f"{base.__name__}(")]


def _heads(config: type[Config], text: str) -> Any:
    names = {name for base in config.__mro__ for name in inspect.get_annotations(base)}
    name = rf"`*(?:{'|'.join(sorted(names, key=len, reverse=True))})`*"
    return re.finditer(rf"(?:^|(?<=[.;)]\s))(?P<names>{name}(?:, {name})*)(?::\s|[ ]{{2,}}(?=\S))", text, re.MULTILINE)


def _reference(config: type[Config], definitions: dict[str, Plain]) -> dict[str, Plain]:
    if config.__name__ not in definitions:
        definitions[config.__name__] = {}  # a config may hold others of its class
        define = _choice if config.kinds else _mapping
        schema = define(config, definitions)
        definitions[config.__name__].update({"anyOf": [schema, *config.short_forms]} if config.short_forms else schema)
    return {"$ref": f"#/$defs/{config.__name__}"}


def _choice(config: type[Config], definitions: dict[str, Plain]) -> dict[str, Plain]:
    """Returns the schema of a config with kinds: the name of one, for its defaults, or the fields of one."""
    members: list[Plain] = [{"enum": [*config.kinds]}]
    for kind, part in config.kinds.items():
        tag: dict[str, Plain] = {"required": [] if kind == config.implied else ["kind"]}
        members.append({"allOf": [_reference(part, definitions), tag]})
    return {"description": summary_of(config), "oneOf": members}


def _mapping(config: type[Config], definitions: dict[str, Plain]) -> dict[str, Plain]:
    properties: dict[str, Plain] = {"kind": {"const": config.kind}} if config.kind else {}
    docs, hints, required = docs_of(config), field_types(config), []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        default = default_of(field)
        properties[field.name] = _field(hints[field.name], definitions)
        if isinstance(default, Config) and default.kind:
            without_kind = {"allOf": [_reference(type(default), definitions), {"not": {"required": ["kind"]}}]}
            properties[field.name] = {"anyOf": [properties[field.name], without_kind]}
        if field.name in docs:
            properties[field.name]["description"] = docs[field.name]
        if default is REQUIRED:
            required.append(field.name)
        else:
            properties[field.name]["default"] = plain_of(default)
    schema = {"description": summary_of(config), "type": "object", "properties": properties}
    return schema | {"required": required, "additionalProperties": False}


def _field(hint: Any, definitions: dict[str, Plain]) -> dict[str, Plain]:
    configs = parts(hint)
    if not configs:
        return leaf_schema(hint)
    hint = without_roles(hint)
    reference = _reference(configs[0], definitions)  # as ``Config`` reads a mapping
    if get_origin(hint) is tuple:
        return {"type": "array", "items": reference}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": reference}
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    return {"anyOf": [reference, {"type": "null"}]} if optional else reference
