"""The folder of a plan below ``runs/studies``: one for each study, scale and set of changes, which its name contains.

A request with the default scale and no changes has the study's own name, ``xl_recurrence``; any other adds them, as in
``xl_recurrence--gpu--training.steps=50``. The number of seeds is not in the name: more seeds add to the same study.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping

from lit_transformers.config import ConfigError, Plain, canonical_hash

__all__ = ["PLAIN_SCALE", "folder_name", "is_plain_name", "rates_group", "require_name", "search_group"]

PLAIN_SCALE = "demo"
LONGEST = 120
"""The most characters of the part with scale and changes; a longer one is cut, and its hash added."""
LONGEST_NAME = 200
"""The largest length of a name in bytes; every file system accepts it, with room for an extension."""


def folder_name(study: str, scale: str, changes: Mapping[str, Plain]) -> str:
    """Returns the name of a plan's folder, which is equal for equal values in any notation and any order."""
    parts = [] if scale in ("", PLAIN_SCALE) else [scale]
    parts += [f"{path}={_text(value)}" for path, value in sorted(changes.items())]
    if not parts:
        return study
    full_name = "--".join(parts)
    safe_name = "--".join(re.sub(r"[^A-Za-z0-9._=+]+|-+", "-", part) for part in parts)[:LONGEST]
    # Upper case too: some file systems do not distinguish Text and text.
    if safe_name != full_name or safe_name != safe_name.lower():
        safe_name += f"--{canonical_hash([scale, dict(changes)], 8)}"
    return f"{study}--{safe_name}"


def _text(value: Plain) -> str:
    """Returns a value as it is typed; a string that would be read as a number or other JSON is quoted."""
    try:
        json.loads(value)
    except (TypeError, ValueError):
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return json.dumps(value)


def search_group(folder: str) -> str:
    """Returns the name of the group of a search's trials, next to the runs of the plan in this folder."""
    return f"{folder}--search"


def rates_group(study: str) -> str:
    """Returns the name of the group of a study's runs at other learning rates, next to the runs of the study."""
    return f"{study}--rates"


def is_plain_name(name: str) -> bool:
    """Whether a name stands for a file directly in the folder that it is joined to, on every system."""
    return name not in ("", ".", "..") and not re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff]|^[A-Za-z]:", name)


def require_name(name: str, of: str) -> None:
    """Raises ConfigError where the name of a study or a run would lead out of its folder or cannot name a file."""
    if not is_plain_name(name):
        raise ConfigError(f"{name!r} is no name of a {of}: it would lead out of its folder; give a plain name")
    if len(name.encode("utf-8", "replace")) > LONGEST_NAME or not name.isprintable():
        raise ConfigError(f"{reprlib.repr(name)} is no name of a {of}: no file can be called so; give a plain name")
