"""Reads YAML as plain data, from files and from command lines; no other module does."""

from __future__ import annotations

import json
from typing import Any

import yaml

__all__ = ["read_yaml"]


DEEPEST = 100
"""Levels of lists and mappings in each other; YAML takes seconds to refuse a file of brackets by Python's own limit."""


LARGEST = 100_000
"""The most values in total, where an alias counts as all values that it stands for: a few lines of aliases of aliases
stand for more than memory holds. A long text counts as several."""
TEXT = 64
"""The characters of a text that count as one value."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, except that it refuses duplicate keys, of which YAML silently keeps the last, and values that
    are nested too deeply, contain themselves or are too large."""

    depth, values = 0, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        self.values += 1
        _require_small(self.values)
        return node

    def compose_document(self) -> yaml.Node | None:
        node: yaml.Node | None = super().compose_document()
        if node is not None:
            _size(node, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"line {line}: the key {key.value!r} is given twice, first in line {lines[name]}")
            lines[name] = line
        return node


class _ForeignLoader(_Loader):
    """Reads values that are no plain data, which programs of others wrote: tuples as lists, all others as text."""


def _as_plain(loader: yaml.Loader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode) and tag == "tuple":
        return loader.construct_sequence(node, deep=True)
    return str(node.value) if isinstance(node, yaml.ScalarNode) and node.value else tag


_ForeignLoader.add_multi_constructor("tag:yaml.org,2002:python/", _as_plain)
_ForeignLoader.add_multi_constructor("!", _as_plain)
_ForeignLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def _size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Returns the number of values that a node and all below it stand for. sizes: the numbers of counted nodes, by
    their identities; None for the nodes around this one. Raises ValueError for a node that contains itself or is too
    large."""
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise ValueError("it contains itself")
        return size
    sizes[id(node)] = None
    size = 1
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value) // TEXT
    for item in () if isinstance(node, yaml.ScalarNode) else node.value:
        size += sum(_size(inner, sizes) for inner in (item if isinstance(node, yaml.MappingNode) else (item,)))
        _require_small(size)
    sizes[id(node)] = size
    _require_small(size)
    return size


def _require_small(values: int) -> None:
    if values > LARGEST:
        raise ValueError(f"it stands for more than {LARGEST:,} values; shorten it, and write no aliases of aliases")


def read_yaml(text: str, *, is_foreign: bool = False) -> Any:
    """Parses YAML into plain data. is_foreign: whether objects of Python and dates are read as text, not refused.

    Raises ValueError where the text is not YAML, has a duplicate key, is nested too deeply, is too large, contains
    itself, or cannot be written as JSON.
    """
    try:
        plain = yaml.load(text, _ForeignLoader if is_foreign else _Loader)
        json.dumps(plain, ensure_ascii=False).encode()
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return plain
