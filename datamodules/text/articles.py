"""Splits the lines of WikiText into articles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TypeVar

__all__ = ["articles", "headed"]

T = TypeVar("T")


def headed(lines: Iterable[tuple[bytes, T]]) -> Iterator[tuple[str | None, bytes, T]]:
    """Yields each line after the title of the article that it begins, or None; a line's ``extra`` is yielded after it.

    A heading, ``= Title =``, stands between blank lines, because text may hold a line that looks like one.
    """
    blank_before = True
    pending: tuple[bytes, T] | None = None
    for line, extra in lines:
        if pending is not None:
            yield _title(pending[0], blank_before and not line.strip()), *pending
            blank_before = not pending[0].strip()
        pending = line, extra
    if pending is not None:
        yield None, *pending


def _title(line: bytes, between_blank_lines: bool) -> str | None:
    """Returns the title that a line holds where it is a heading, otherwise None."""
    text = line.strip()
    if (
        between_blank_lines
        and text.startswith(b"= ")
        and text.endswith(b" =")
        and not text.startswith(b"= =")
        and len(text) > 4
    ):
        return text[2:-2].decode(errors="replace")
    return None


def articles(lines: Iterable[bytes]) -> Iterator[tuple[str, BytesIO]]:
    """Yields each article's title and text; lines before the first heading belong to the first article."""
    title, text = "", bytearray()
    for heading, line, _ in headed((line, None) for line in lines):
        if heading is not None and title:
            yield title, BytesIO(bytes(text))
            text.clear()
        title = heading or title
        text += line
    if text:
        yield title or "untitled", BytesIO(bytes(text))
