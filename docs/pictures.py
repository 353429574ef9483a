"""The picture of a terminal that the README shows, made from the published results of the demo."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from lit_transformers.records.files import RESULTS, write_text
from reports.read.results import read_results
from reports.report import find, print_report

__all__ = ["STUDY", "TERMINAL", "terminal_svg", "write_terminal"]

STUDY = "xl_recurrence"
"""The demo."""
TERMINAL = Path("docs", "pictures", "terminal.svg")
WIDTH = 80


def terminal_svg(published: Path) -> str:
    """Returns the picture of a terminal in which the demo has ended, as SVG that loads no font from elsewhere."""
    findings = find(read_results(published / STUDY / RESULTS))
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    command = f"python -m ablations run {STUDY}"
    console.print(Text(f"$ {command}", style="bold"))
    print_report(findings, console)
    svg = console.export_svg(title=command, theme=DIMMED_MONOKAI, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def write_terminal(root: Path) -> Path:
    """Writes the picture below the root of a checkout and returns its path."""
    (root / TERMINAL).parent.mkdir(exist_ok=True)
    write_text(root / TERMINAL, terminal_svg(root / "published"))
    return root / TERMINAL
