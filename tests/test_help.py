"""What --help shows: every word and every default, on a terminal of 80 columns."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

PACKAGES = ("ablations", "sweeps", "reports", "lit_transformers")
COMMANDS = [
    (package, name)
    for package in PACKAGES
    for name in typer.main.get_command(importlib.import_module(f"{package}.__main__").app).commands  # type: ignore[attr-defined]
]


def default_of(option: Any) -> str | None:
    """The default of an option as help shows it, or None where it has no value."""
    if isinstance(option.show_default, str):
        return f"({option.show_default})"
    if option.secondary_opts:
        return str((option.opts if option.default else option.secondary_opts)[0].lstrip("-"))
    is_value = option.default not in (None, False, "") and not callable(option.default) and not option.required
    return str(option.default) if is_value else None


@pytest.mark.parametrize(("package", "name"), COMMANDS)
def test_help_shows_every_default_and_loses_no_word(package: str, name: str) -> None:
    app = importlib.import_module(f"{package}.__main__").app
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"})
    words = "".join(result.output.replace("│", "").split())
    for option in command.params:
        text, default = getattr(option, "help", None) or "", default_of(option)
        assert Text.from_markup(text).plain == text, f"--{option.name}: a part is taken for markup"
        if default is not None:
            assert f"[default:{''.join(default.split())}]" in words, f"--{option.name}"
    for text in (command.help or "", command.epilog or ""):
        assert Text.from_markup(text).plain == text


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
            assert len(line.rstrip()) + len(after.split()[0]) + 3 > 80, f"{line!r} has room for what follows"
