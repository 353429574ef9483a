"""The lint of the project's English, ``python -m docs lint``: banned forms, and the rate of clauses with "what".

It reads the pages of the documentation without their code, and all words of the code: strings, docstrings, comments.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

__all__ = ["BANNED", "WHAT_CLAUSES", "Finding", "Passage", "faults", "findings", "passages", "rate_of_what"]

FOLDERS = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports", "claims", "benchmarks", "docs", "tests")
"""The folders with code."""
EXEMPT = Path("docs", "prose.py"), Path("tests", "test_prose.py"), Path("tests", "mutants", "faults.py")
"""The list of banned forms, its test, and quotations of code."""
WHAT_CLAUSES = 2.5
"""The most clauses with "what" in a thousand words of the pages, and of the code."""
BANNED: Mapping[str, str] = {
    r"go(?:es|ing)? on|went on": "resume, or continue",
    r"beside": "next to, with, or as well as",
    r"told|(?:be|is|are|was|were|been) asked": "given, known or studied",
    r"left away": "omitted",
    r"so many": "n",
    r"of (?:its|their|his) own": "its own X, or separate",
    r"where it was": "name the place",
    r"in all(?=[,.;:)]|$)": "in total",
    r"at hand": "available",
}
"""Patterns of forms that plain English avoids, with what to write in their place."""
_BANNED = [
    (re.compile(rf"\b(?:{form})\b".replace(" ", r"\s+"), re.IGNORECASE), better) for form, better in BANNED.items()
]
"""The patterns, which also match forms that a line end divides."""
_WHAT = re.compile(r"\bwhat(?:ever)?\b[^?.]*+(?!\?)", re.IGNORECASE)
"""A clause with "what" that is no question."""
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_MARKUP = re.compile(r"<!--.*?-->|``[^`]+``|`[^`\n]+`|\]\([^)]*\)|https?://\S+", re.DOTALL)


class Passage(NamedTuple):
    """Words that a person reads: the file and line at which they begin, and the text without code."""

    file: Path
    line: int
    text: str


class Finding(NamedTuple):
    """A banned form, where it stands, and what to write in its place."""

    file: Path
    line: int
    form: str
    better: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.form!r}: write {self.better}"


def passages(root: Path) -> Iterator[Passage]:
    """Yields everything that a person reads of the checkout at ``root``."""
    for page in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))):
        yield from _of_page(page.relative_to(root), page.read_text(encoding="utf-8"))
    for folder in FOLDERS:
        for module in sorted((root / folder).rglob("*.py")):
            if (file := module.relative_to(root)) not in EXEMPT:
                yield from _of_module(file, module.read_text(encoding="utf-8"))


def findings(read: Sequence[Passage]) -> Iterator[Finding]:
    """Yields every banned form of the passages."""
    for passage in read:
        for form, better in _BANNED:
            for match in form.finditer(passage.text):
                line = passage.line + passage.text.count("\n", 0, match.start())
                yield Finding(passage.file, line, match.group(), better)


def rate_of_what(read: Sequence[Passage]) -> float:
    """Returns the clauses with "what" in a thousand words; questions do not count."""
    words = sum(len(_WORD.findall(passage.text)) for passage in read)
    clauses = sum(len(_WHAT.findall(passage.text)) for passage in read)
    return 1000 * clauses / max(1, words)


def faults(root: Path) -> Iterator[str]:
    """Yields a line for every banned form of the checkout at ``root``, and one for its pages, or its code, if these
    have more clauses with "what" than WHAT_CLAUSES."""
    read = list(passages(root))
    yield from map(str, findings(read))
    for name, suffix in (("pages", ".md"), ("code", ".py")):
        rate = rate_of_what([passage for passage in read if passage.file.suffix == suffix])
        if rate > WHAT_CLAUSES:
            yield f'{name}: {rate:.2f} clauses with "what" in a thousand words; at most {WHAT_CLAUSES}'


def _of_page(file: Path, text: str) -> Iterator[Passage]:
    """Yields the prose of a page as one passage, in which code is blank, so that lines keep their numbers."""
    for code in (_FENCE, _MARKUP):
        text = code.sub(lambda match: re.sub(r"[^\n]+", " ", match.group()), text)
    yield Passage(file, 1, text)


def _of_module(file: Path, source: str) -> Iterator[Passage]:
    """Yields the strings and comments of a module that hold several words."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in inside:
                yield from _of_string(file, node.lineno, text)
            case ast.JoinedStr():
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                yield from _of_string(file, node.lineno, "".join(map(str, parts)))
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _of_string(file, token.start[0], token.string)


def _of_string(file: Path, line: int, text: str) -> Iterator[Passage]:
    if len(_WORD.findall(text)) >= 3 and " " in text:
        yield Passage(file, line, _MARKUP.sub(" ", text))
