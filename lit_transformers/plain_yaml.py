"""Reads YAML as plain data, from files and from command lines; no other module does."""

from __future__ import annotations

import json
from typing import Any

import yaml

__all__ = ["read_yaml"]


DEEPEST = 100
"""Levels of lists and mappings in each other; YAML takes seconds to refuse a file of brackets by Python's own limit."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, except that it refuses duplicate keys, of which YAML silently keeps the last, and what is
    nested too deeply."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
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


def read_yaml(text: str) -> Any:
    """Parses YAML into plain data.

    Raises ValueError where the text is not YAML, has a duplicate key, is nested too deeply, contains itself, or cannot
    be written as JSON.
    """
    try:
        plain = yaml.load(text, _Loader)
        json.dumps(plain, ensure_ascii=False).encode()
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return plain
