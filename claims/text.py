"""Marks in Markdown that enclose measured values, and how values are put between them.

``<!-- claim demo.difference:.3f -->0.124<!-- /claim -->`` holds the value ``difference`` of the claim ``demo`` with
three decimals; a reader of the page sees only the number. A value of several lines, such as a table, stands on separate
lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from claims.claim import ROOT
from lit_transformers.config import Plain

__all__ = ["DECISIONS", "filled", "pages", "unmarked_measurements", "unmeasured"]

DECISIONS = "decisions.md"
"""The page of decisions: a number there is a reason from the dates of its record, and is not updated."""

_MARK = re.compile(r"<!-- claim (?P<value>[\w.]+)(?::(?P<format>\S+))? -->(?P<text>.*?)<!-- /claim -->", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_UNITS = "BLEU|ROUGE|bits|perplexity|%|seconds?|minutes?|hours?|ms|GB|GiB|MiB|times|tokens a second"
_MEASUREMENT = re.compile(rf"\b\d[\d.,]*(?: (?:to|of|\+-) \d[\d.,]*)? ?(?:{_UNITS})(?![\w-])")


def pages() -> list[Path]:
    """Returns the paths of the README and of every page in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def unmeasured(page: str, values: Mapping[str, Plain]) -> list[str]:
    """Returns the names of values that the page has marks for but that were not measured."""
    return [mark["value"] for mark in _MARK.finditer(page) if mark["value"] not in values]


def filled(page: str, values: Mapping[str, Plain]) -> str:
    """Returns the page with today's values between its marks; where a value is missing, its mark stays as it is."""

    def fill(mark: re.Match[str]) -> str:
        name, style = mark["value"], mark["format"] or ""
        if name not in values:
            return mark.group()
        text = format(values[name], style)
        opening = f"<!-- claim {name}{f':{style}' if style else ''} -->"
        return f"{opening}\n{text}\n<!-- /claim -->" if "\n" in text else f"{opening}{text}<!-- /claim -->"

    return _MARK.sub(fill, page)


def unmarked_measurements(page: str) -> Iterator[str]:
    """Yields numbers with a unit of measurement that stand outside of all marks; code is ignored."""
    for pattern in (_MARK, _FENCE, _CODE):
        page = pattern.sub("", page)
    yield from (measurement.group() for measurement in _MEASUREMENT.finditer(page))
