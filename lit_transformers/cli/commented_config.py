"""Configs as a reader wants them: YAML in which every field has its doc, its type, its range and its default."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

import yaml

from lit_transformers.config import Config, Plain, field_types, plain_leaves, plain_of
from lit_transformers.json_schema import REQUIRED, default_of, docs_of, leaf_schema, summary_of
from lit_transformers.kinds import parts

__all__ = ["SCHEMA_FILE", "commented_lines", "differences"]

SCHEMA_FILE = "run.schema.json"
"""The file of the schema that the head of a printed config names, for editors."""
WIDTH = 80
INDENT = "  "
REQUIRED_MARK = "# <- required: write it here"
LARGEST = 2**31
"""The least bound that goes without saying: tensors hold no larger numbers."""


def commented_lines(config: Config | type[Config], depth: int = 0) -> Iterator[str]:
    """Yields a config as YAML, field by field, with comments before each. ``Config.from_yaml`` reads it back.

    Of a class the defaults are printed, and a field without one is left empty, with a comment that says so.
    """
    config_type = config if isinstance(config, type) else type(config)
    if config.kind:
        yield from _comment(summary_of(config_type), depth)
        yield f"{INDENT * depth}kind: {config.kind}"
    docs, hints = docs_of(config_type), field_types(config_type)
    for field in dataclasses.fields(config_type):  # type: ignore[arg-type]
        value = default_of(field) if isinstance(config, type) else getattr(config, field.name)
        kinds = [kind for part in parts(hints[field.name]) for kind in part.kinds]
        place, notes = f"{INDENT * depth}{field.name}:", [docs.get(field.name, "")]
        if kinds:
            notes.append(f"kinds: {', '.join(kinds)}")
        if isinstance(value, Config):
            yield from _comment(_sentences(notes), depth)
            yield place
            yield from commented_lines(value, depth + 1)
            continue
        notes.append("" if parts(hints[field.name]) else type_text(leaf_schema(hints[field.name])))
        default = default_of(field)
        notes.append("required" if default is REQUIRED else f"default {scalar(plain_of(default))}")
        yield from _comment(_sentences(notes), depth)
        yield f"{place} {REQUIRED_MARK if value is REQUIRED else scalar(plain_of(value))}"


def differences(first: Config, second: Config) -> dict[str, tuple[str, str]]:
    """Returns the paths at which two configs differ, with both values as YAML; empty where one has no such path."""
    left, right = dict(plain_leaves(first.to_dict())), dict(plain_leaves(second.to_dict()))
    pairs = {path: (_at(left, path), _at(right, path)) for path in {**left, **right}}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _at(leaves: Mapping[str, Plain], path: str) -> str:
    return scalar(leaves[path]) if path in leaves else ""


def scalar(value: Plain) -> str:
    """Returns plain data as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**9)[1:-2]


def type_text(schema: Mapping[str, Any]) -> str:
    """Returns the type, range or choices of a field's schema in words."""
    if "anyOf" in schema:
        return " or ".join(type_text(member) for member in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(value).strip('"') for value in schema.get("enum", [schema.get("const")]))
    name = {"boolean": "true or false", "object": "mapping", "array": "list"}.get(
        schema.get("type", ""), schema.get("type", "any value")
    )
    items = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
    if items:
        name += f" of {type_text(items)}"
    return " ".join([name, *_bounds(schema)])


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields the bounds of a number as comparisons."""
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if abs(schema.get(name, LARGEST)) < LARGEST]
    if bounds:
        yield " and ".join(bounds)


def _sentences(notes: list[str]) -> str:
    return ". ".join(note.rstrip(".") for note in notes if note)


def _comment(text: str, depth: int) -> Iterator[str]:
    head = f"{INDENT * depth}# "
    yield from wrap(text, WIDTH, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)
