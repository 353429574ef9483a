"""WikiText's lines as articles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TypeVar

__all__ = ["articles", "headed"]

T = TypeVar("T")


def headed(lines: Iterable[tuple[bytes, T]]) -> Iterator[tuple[str | None, bytes, T]]:
    """Puts before each line the title that it starts an article with, or None. What comes with a line stays with it.

    A heading, ``= Title =``, stands between blank lines: text may hold a line that looks like one.
    """
    blank_before = True
    held: tuple[bytes, T] | None = None
    for line, extra in lines:
        if held is not None:
            yield _title(held[0], blank_before and not line.strip()), *held
            blank_before = not held[0].strip()
        held = line, extra
    if held is not None:
        yield None, *held


def _title(line: bytes, alone: bool) -> str | None:
    text = line.strip()
    if alone and text.startswith(b"= ") and text.endswith(b" =") and not text.startswith(b"= =") and len(text) > 4:
        return text[2:-2].decode(errors="replace")
    return None


def articles(lines: Iterable[bytes]) -> Iterator[tuple[str, BytesIO]]:
    """Each article's title and text; what stands before the first heading belongs to the first article."""
    title, held = "", bytearray()
    for found, line, _ in headed((line, None) for line in lines):
        if found is not None and title:
            yield title, BytesIO(bytes(held))
            held.clear()
        title = found or title
        held += line
    if held:
        yield title or "untitled", BytesIO(bytes(held))
