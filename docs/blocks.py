"""The code blocks of pages: which are run, in which folder, and the output that they must print.

The blocks of a page are run in order in one folder that is empty at first, with the suite installed. The words behind
the ticks of a fence decide::

    sh               shell commands, the first of which that fails ends the page
    python           a script
    yaml run.yaml    a file, which is written into the folder; so is a block of any language with a name behind it
    text             directly below one of the above: its output, where ``...`` on a line by itself leaves lines out

A block below ``<!-- not run: REASON -->`` is not run; its commands are still parsed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LANGUAGES", "Block", "BlockError", "blocks_of", "differs", "run_page", "with_output"]

LANGUAGES = {"sh", "python", "yaml", "toml", "text"}
RUN = {"sh": ["bash", "-e", "-o", "pipefail", "-c"], "python": ["python", "-c"]}
PROGRAMS = Path(sys.executable).parent
LEFT_OUT = "..."
RELATIVE, ABSOLUTE = 0.2, 0.05
"""How far a number that a block prints may lie off the page's: other machines round otherwise."""
_FENCE = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<reason>[^>]+)|(?P<claim>claim \S+)) -->\n+)?"
    r"^ *```(?P<info>[^\n`]*)\n(?P<text>.*?)^ *```$"
    r"(?:\n+^```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


class BlockError(ValueError):
    """A block that fails or prints something else than its page. The message names the page and the line."""


@dataclass(frozen=True)
class Block:
    """A block of code. ``file``: the name of the file that it becomes; ``reason``: why it is not run; ``output``: its
    output on the page."""

    place: str
    language: str
    file: str
    text: str
    reason: str | None
    output: str | None
    span: tuple[int, int]


def blocks_of(text: str, name: str) -> list[Block]:
    """Returns the blocks of a page, each with its place: the page's name and the line."""
    blocks = []
    for match in _FENCE.finditer(text):
        language, _, file = ("text" if match["claim"] else match["info"].strip()).partition(" ")
        place = f"{name}:{text.count(chr(10), 0, match.start('info')) + 1}"
        parts = (match["text"], match["reason"], match["output"])
        blocks.append(Block(place, language, file, *parts, match.span("output")))
    return blocks


def run_page(blocks: Sequence[Block], folder: Path, programs: Path = PROGRAMS) -> Iterator[tuple[Block, str]]:
    """Runs the blocks of a page in a folder and yields each with its output. Raises BlockError where one fails.

    programs: the folder of the ``python`` that runs them.
    """
    for block in blocks:
        if block.reason is not None:
            continue
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language in RUN:
            yield block, _run(block, folder, programs)


def _run(block: Block, folder: Path, programs: Path) -> str:
    path = os.pathsep.join([str(programs), str(PROGRAMS), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "80", "PYTHONWARNINGS": "ignore"}
    command = [*RUN[block.language], block.text]
    command[0] = shutil.which(command[0], path=path) or command[0]
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if completed.returncode:
        raise BlockError(f"{block.place}: status {completed.returncode}\n{completed.stdout}\n{completed.stderr}")
    return completed.stdout


def differs(expected: str, printed: str) -> str | None:
    """Returns the first line that a page has and a block did not print, or None. Numbers may lie a little off."""
    lines, at = [line.split() for line in printed.splitlines()], 0
    anywhere = False
    for line in expected.splitlines():
        if line.strip() == LEFT_OUT:
            anywhere = True
            continue
        places = range(at, len(lines)) if anywhere else range(at, min(at + 1, len(lines)))
        place = next((place for place in places if _alike(line.split(), lines[place])), None)
        if place is None:
            return line
        at, anywhere = place + 1, False
    return None if anywhere or not any(lines[at:]) else " ".join(next(filter(None, lines[at:])))


def _alike(expected: list[str], printed: list[str]) -> bool:
    if len(expected) != len(printed):
        return False
    for one, other in zip(expected, printed, strict=True):
        if _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
            return False
        for first, second in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
            a, b = float(first.replace(",", "")), float(second.replace(",", ""))
            if abs(a - b) > ABSOLUTE + RELATIVE * abs(a):
                return False
    return True


def with_output(page: str, outputs: Sequence[tuple[Block, str]]) -> str:
    """Returns a page with the output of its blocks in place of the output that it has so far. Where it leaves lines
    out, as many lines stay before and after as it has."""
    for block, printed in reversed(outputs):
        if block.output is not None:
            start, end = block.span
            page = page[:start] + _shortened(block.output, printed) + page[end:]
    return page


def _shortened(old: str, printed: str) -> str:
    kept, lines = old.splitlines(), [line.rstrip() for line in printed.strip("\n").splitlines()]
    if LEFT_OUT in kept:
        head = kept.index(LEFT_OUT)
        tail = len(kept) - head - 1
        lines = [*lines[:head], LEFT_OUT, *lines[len(lines) - tail :]]
    return "\n".join(lines) + "\n"
