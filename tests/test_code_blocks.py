"""The code that README and docs show is run as it stands there, and prints the output that stands below it."""

from __future__ import annotations

import importlib
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.blocks import LANGUAGES, Block, BlockError, blocks_of, differs, run_page, with_output
from lit_transformers.config import ConfigError, parse_assignments
from lit_transformers.runs import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())


def is_run(block: Block) -> bool:
    return block.reason is None and (block.language == "sh" or (block.language == "python" and not block.file))


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [page for page in PAGES if any(map(is_run, blocks(page)))]
NOT_RUN = [block for block in BLOCKS if block.reason is not None]
SHOWN = re.compile(r"python -m (ablations|lit_transformers|reports|sweeps) ([^|<>\n]*)")
"""A command up to the end of its line, or to where its output goes."""
COMMANDS = [
    (block.place, match[1], shlex.split(match[2], comments=True))
    for block in BLOCKS
    if block.language == "sh"
    for match in SHOWN.finditer(block.text.replace("\\\n", " "))
]


def test_every_block_says_what_it_is() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block.place}: {block.language!r}"
    for page in PAGES:
        fences = re.findall("^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
        known = sum(4 if block.output is not None else 2 for block in blocks(page))
        assert len(fences) == known, f"{page.name}: a fence that is taken for none"


@cache
def command_of(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.__main__").PROGRAM.command(name)


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    """Also of blocks that are not run."""
    assert len(COMMANDS) > 50
    for place, package, (name, *arguments) in COMMANDS:
        options = {option for parameter in command_of(package, name).params for option in parameter.opts}
        unknown = {word.partition("=")[0] for word in arguments if word.startswith("-")} - options
        assert not unknown, f"{place}: python -m {package} {name} has no {', '.join(unknown)}"


SETTINGS = [
    (page.name, setting)
    for page in PAGES
    for setting in re.findall(r"`((?:model|task|data|training)(?:\.\w+)*=[^`]+)`", page.read_text(encoding="utf-8"))
]


def test_every_setting_that_a_sentence_names_can_be_set() -> None:
    """It may conflict with other parts of a config, and then the error does not begin with its path."""
    assert len(SETTINGS) > 8
    for page, setting in SETTINGS:
        try:
            RunConfig().override(parse_assignments([setting]))
        except ConfigError as error:
            path = re.escape(setting.partition("=")[0])
            assert not re.match(rf"{path}[.:]", str(error)), f"{page}: {setting}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(
    page: Path, python: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    for variable in ("LIT_DATA", "LIT_WEIGHTS", "LIT_TRANSFORMERS_STORAGE"):
        monkeypatch.delenv(variable, raising=False)
    for block, printed in run_page(blocks(page), tmp_path, python.parent):
        if block.output is not None:
            line = differs(block.output, printed)
            assert line is None, f"{block.place}: {line!r}; put it there by: python -m docs outputs {page}\n{printed}"


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.place)
def test_blocks_that_are_not_run(block: Block) -> None:
    pytest.skip(block.reason)


PAGE = """
```sh
echo 1.00 and more
```
```text
0.98 and more
```

<!-- not run: it ends the world -->
```sh
exit 1
```
"""


def test_a_page_is_run_but_for_what_says_why_not(tmp_path: Path) -> None:
    (block, printed), *others = run_page(blocks_of(PAGE, "page"), tmp_path)
    assert (block.place, printed, others) == ("page:2", "1.00 and more\n", [])
    assert block.output is not None and differs(block.output, printed) is None
    assert "1.00 and more\n```\n\n<!--" in with_output(PAGE, [(block, printed)])
    with pytest.raises(BlockError, match="page:10: status 1"):
        list(run_page(blocks_of(PAGE.replace("not run", "run"), "page"), tmp_path))


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        ("a 1.0\nb 2.0", None),
        ("a 1.1\nb 2.0", None),
        ("...\nb 2.0", None),
        ("a 1.0\n...", None),
        ("a 1.5\nb 2.0", "a 1.5"),
        ("a 1.0", "b 2.0"),
        ("a 1.0\nc 2.0", "c 2.0"),
        ("a 1.0\nb 2.0\n...\nc 3.0", "c 3.0"),
    ],
)
def test_what_is_printed_has_the_lines_of_the_page_and_its_numbers_nearly(expected: str, difference: str) -> None:
    assert differs(expected, "a 1.0\nb 2.0\n") == difference
