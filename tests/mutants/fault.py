"""A fault: a piece of text that is replaced by another, and the tests that should detect it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """``old`` occurs exactly once in ``file`` and is replaced by ``new``. tests: node ids of pytest that take seconds.

    area: the part of the suite that the fault is in; ``--only`` searches its name and the fault's name.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def unfit(self, root: Path) -> str | None:
        """Returns why the fault cannot be planted in a checkout, or None where it can."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        if count != 1:
            return f"{self.file} holds the old text {count} times"
        return "the new text is the old one" if self.old == self.new else None

    def plant(self, root: Path, number: int) -> None:
        """Replaces the text. Every number gives the file a different time, so that no compiled code of another fault is
        taken for it."""
        path = root / self.file
        seconds = 1_000_000_000 + number
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")
        os.utime(path, (seconds, seconds))
