"""YAML as plain data: the one place where it is read, whether from a file or from a command line."""

from __future__ import annotations

import json
from typing import Any

import yaml

__all__ = ["read_yaml"]


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, except that no key may be given twice: of two values it would keep the last in silence."""

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
    """Plain data from YAML.

    Raises ValueError for what is no YAML, gives a key twice, holds itself, or cannot be written as JSON.
    """
    try:
        plain = yaml.load(text, _Loader)
        json.dumps(plain, ensure_ascii=False).encode()
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return plain
