"""The folder of a plan below ``runs/studies``: one for each study, scale and set of changes, named so that it is found.

The plain request keeps the study's own name, ``xl_recurrence``; any other adds what sets it apart, as in
``xl_recurrence--gpu--training.steps=50``. The number of seeds sets nothing apart: more seeds add to the same study.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from lit_transformers.config import Plain, canonical_hash

__all__ = ["PLAIN_SCALE", "folder_name"]

PLAIN_SCALE = "demo"
LONGEST = 120
"""Characters of the part that tells what sets a plan apart; a longer one is cut, and its hash added."""


def folder_name(study: str, scale: str, changes: Mapping[str, Plain]) -> str:
    """The name of a plan's folder: the same for the same values, however they were typed and in whatever order."""
    parts = [] if scale in ("", PLAIN_SCALE) else [scale]
    parts += [f"{path}={_text(value)}" for path, value in sorted(changes.items())]
    if not parts:
        return study
    whole = "--".join(parts)
    safe = "--".join(re.sub(r"[^A-Za-z0-9._=+]+|-+", "-", part) for part in parts)[:LONGEST]
    # Upper case too: some file systems take Text and text for one name.
    if safe != whole or safe != safe.lower():
        safe += f"--{canonical_hash([scale, dict(changes)], 8)}"
    return f"{study}--{safe}"


def _text(value: Plain) -> str:
    """A value as it is typed; a string that reads like a number in quotes."""
    try:
        json.loads(value)
    except (TypeError, ValueError):
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return json.dumps(value)
