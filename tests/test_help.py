"""The text of --help: every word and every default, on a terminal of 80 columns."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import pytest
from rich.text import Text

from lit_transformers.cli.commands import run_command

PACKAGES = ("ablations", "claims", "docs", "lit_transformers", "reports", "sweeps")
PROGRAMS = {package: importlib.import_module(f"{package}.__main__").PROGRAM for package in PACKAGES}


def default_of(option: Any) -> str | None:
    """The default of an option as help shows it, or None where it has no value."""
    if isinstance(option.show_default, str):
        return f"({option.show_default})"
    if option.secondary_opts:
        return str((option.opts if option.default else option.secondary_opts)[0].lstrip("-"))
    is_value = option.default not in (None, False, "") and not callable(option.default) and not option.required
    return str(option.default) if is_value else None


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, program in PROGRAMS.items() for name in program.commands]
)
def test_help_shows_every_default_and_loses_no_word(
    package: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first paragraph is the line of the command in the help of the program."""
    monkeypatch.setenv("COLUMNS", "80")
    command = PROGRAMS[package].command(name)
    assert run_command(PROGRAMS[package], [name, "--help"]) == 0
    words = "".join(capsys.readouterr().out.replace("│", "").split())
    for option in command.params:
        text, default = getattr(option, "help", None) or "", default_of(option)
        assert Text.from_markup(text).plain == text, f"--{option.name}: a part is taken for markup"
        if default is not None:
            assert f"[default:{''.join(default.split())}]" in words, f"--{option.name}"
    text = command.help or ""
    assert Text.from_markup(text).plain == text
    assert text.partition("\n\n")[0] == PROGRAMS[package].commands[name].help


def test_paragraphs_fill_the_lines_of_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Wherever their source breaks them."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["lit_transformers", "convert", "--help"])
    assert importlib.import_module("lit_transformers.__main__").main() == 0
    text = capsys.readouterr().out.split("Arguments")[0]
    paragraphs = [part.splitlines() for part in text.split(" " * 80 + "\n")[1:]]
    assert len(paragraphs) > 3
    for lines in paragraphs:
        for line, after in pairwise(lines):
            assert len(line.rstrip()) + len(after.split()[0]) + 3 > 80, f"{line!r} has room for the next word"
